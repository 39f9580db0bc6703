"""Whole trainings in a second: the parts and readers of the program, with a network of three layers."""
import numpy as np

from common.mxnet_loader import mx
from recognition.build import build_trainer
from recognition.collective import LocalCollective
from recognition.settings import complete, defaults
from symbols.blocks import Layers

FLAGS = dict(num_classes=12, image_shape=[12, 12, 3], emb_size=16, val_targets=[], per_batch_size=12, lr=0.05,
             loss_s=16.0, loss_m2=0.3, head_block_size=4, frequent=1, data_color=1, data_threads=1, ckpt=1,
             ckpt_every=1000)


def tiny_builder(net_name):
    """Stands in for symbols.get_backbone. The family 'plain' has no batch statistics; 'dropping' drops at random."""
    def build(embedding_size, dtype='float32', half_products=False, prelu='plain'):
        layers = Layers(dtype=dtype, half_products=half_products, net_act='relu')
        data = layers.convolution(layers.scaled_images(), 8, 3, 2, name='conv')
        data = data if net_name == 'plain' else layers.batch_norm(data, 'bn')
        data = layers.activation(data, 8, 'relu')
        if net_name == 'dropping':
            data = mx.sym.Dropout(data, p=0.4)
        return layers.fully_connected(data, embedding_size, 'fc1', 'fc1_weight')
    return build


def tiny_run(set_folder, folder, num_devices=1, collective=None, **settings):
    """A Trainer that was fitted; results are in `folder`. collective: None for one process."""
    trainer = tiny_trainer(set_folder, folder, num_devices, collective, **settings)
    trainer.fit()
    return trainer


def tiny_trainer(set_folder, folder, num_devices=1, collective=None, **settings):
    dataset_path = set_folder if isinstance(set_folder, list) else str(set_folder)
    cfg = complete(dict(defaults(), **dict(FLAGS, dataset_path=dataset_path, **settings)))
    folder.mkdir(parents=True, exist_ok=True)
    contexts = [mx.cpu(number) for number in range(num_devices)]
    return build_trainer(cfg, tiny_builder, contexts, str(folder / 'model'),
                         collective or LocalCollective())


def state_path(folder, step):
    return folder / 'model-state' / ('step-%08d' % step)


def saved_arrays(folder, step):
    """{name: values} of the training state of a step, the head's by class whatever its shards were."""
    path = state_path(folder, step)
    with np.load(str(path / 'backbone.npz'), allow_pickle=False) as backbone:
        arrays = {name: backbone[name] for name in backbone}
    for file in sorted((path / 'head').iterdir()):
        arrays.setdefault(file.name.split('-')[0], []).append(np.load(str(file), allow_pickle=False))
    return {name: np.concatenate(array) if isinstance(array, list) else array for name, array in arrays.items()}
