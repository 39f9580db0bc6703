"""Real photographs: the packing, and a published model on pairs of them."""
import filecmp

import pytest

from common.face_record import open_face_set, read_property
from common.mxnet_loader import mx
from common.verification import evaluate, load_bin
from tests.make_real import SIZE, real_pairs, split_people, write_real_set

BATCH_SIZE = 50


@pytest.mark.realdata
def test_real_set_is_packed_the_same_each_time_and_split_by_person(shared_data, tmp_path):
    source = shared_data / 'lfw_a'
    counts = write_real_set(source, tmp_path / 'a')
    assert write_real_set(source, tmp_path / 'b') == counts
    for name in ('train.rec', 'train.idx', 'property', 'real.bin'):
        assert filecmp.cmp(str(tmp_path / 'a' / name), str(tmp_path / 'b' / name), shallow=False), name
    with open_face_set(str(tmp_path / 'a' / 'train.rec')) as faces:
        assert (read_property(str(tmp_path / 'a')).num_classes, faces.num_images) == counts
        trained = {bytes(faces.read(number)[24:]) for number in range(faces.num_images)}
    vset = load_bin(str(tmp_path / 'a' / 'real.bin'))
    assert vset.same.sum() == 300 and not trained & set(vset.distinct)


def published_model(shared_data):
    """embed function of the MobileFaceNet (y1) that comes with the photographs."""
    symbol, params, aux = mx.model.load_checkpoint(str(shared_data / 'models' / 'y1'), 0)
    module = mx.mod.Module(symbol.get_internals()['fc1_output'], label_names=None)
    module.bind([('data', (BATCH_SIZE, 3) + SIZE)], for_training=False)
    module.set_params(params, aux)

    def embed(images):
        module.forward(mx.io.DataBatch([mx.nd.array(images)]), is_train=False)
        return module.get_outputs()[0].asnumpy()

    return embed


@pytest.mark.realdata
@pytest.mark.slow
def test_a_published_model_has_its_known_accuracy(shared_data):
    """MobileFaceNet on 600 pairs of photographs: about 0.99 is known for it on photographs cut this way.

    The length of its embeddings tells of other colours or sizes earlier than the accuracy, which is 1.0 on these.
    """
    _, held = split_people(shared_data / 'lfw_a', 100)
    result = evaluate(real_pairs(held, 600), published_model(shared_data), BATCH_SIZE, SIZE)
    assert result.accuracy_flip > 0.98 and result.accuracy > 0.975
    assert result.tar_at_far[0.01] > 0.95 and result.note == ''
    assert result.xnorm == pytest.approx(11.13, abs=0.05)
