"""From photographs to a trained network: built, converted, inspected, and trained in every way of reading."""
import json
import os
import re

import pytest

import train_parall
from common import rec2shufrec, rec_builder, rec_inspect
from common.demo_set import draw_people
from common.face_record import read_property

PEOPLE, PHOTOS = 4, 3


@pytest.fixture
def sets(tmp_path):
    """Folders {name: indexed set} of two sets of rendered photographs, other people in each."""
    for name, seed in (('first', 0), ('second', 1)):
        images = draw_people(seed, [PHOTOS] * PEOPLE)
        for person in range(PEOPLE):
            folder = tmp_path / 'photos' / name / str(person)
            folder.mkdir(parents=True)
            for number in range(PHOTOS):
                (folder / ('%d.jpg' % number)).write_bytes(next(images))
        assert rec_builder.main(['--input', str(tmp_path / 'photos' / name), '--output', str(tmp_path / name),
                                 '--threads', '2']) == 0
    return {name: str(tmp_path / name) for name in ('first', 'second')}


def convert(folder):
    assert rec2shufrec.main(['--input', folder, '--output', folder + '-shuffled', '--verify']) == 0
    return folder + '-shuffled'


def is_sound(folder):
    return rec_inspect.main(['--input', folder, '--walk', '--decode']) == 0


@pytest.fixture
def train(tmp_path, capsys):
    """Train two steps; returns the log and the folder of the results."""
    def call(name, *flags):
        code = train_parall.main([
            '--network', 'demo', '--dataset', 'casia', '--devices', 'cpu:2', '--per-batch-size', '4', '--frequent', '1',
            '--max-steps', '2', '--set', 'val_targets=', '--models-root', str(tmp_path / 'models'),
            '--extra-model-name', name, *flags])
        log = capsys.readouterr().err
        assert code == 0 and len(re.findall(r'step \d/2 epoch \d loss \d+\.\d+', log)) == 2, log
        return log, tmp_path / 'models' / ('demo-arcface-casia-%s' % name)
    return call


def test_photographs_become_a_trained_network(sets, train):
    shuffled = {name: convert(folder) for name, folder in sets.items()}
    assert all(is_sound(folder) for folder in [*sets.values(), *shuffled.values()])
    assert read_property(shuffled['first']).num_classes == PEOPLE
    for kind, folders in (('False', sets), ('True', shuffled)):
        mode = '--set', 'is_shuffled_rec=' + kind
        _, alone = train('alone' + kind, '--dataset-path', folders['first'], *mode)
        assert not (alone / 'model-labels.tsv').exists()
        log, both = train('both' + kind, '--dataset-path', '%s,%s' % (folders['first'], folders['second']), *mode)
        assert '%s: 12 images, 4 classes, labels 4 to 7' % folders['second'] in log
        assert (both / 'model-labels.tsv').read_text() == (
            'set\tfirst label\tclasses\timages\n%s\t0\t4\t12\n%s\t4\t4\t12\n' % (folders['first'], folders['second']))
        saved = json.loads((both / 'model-config.json').read_text())
        assert saved['num_classes'] == 2 * PEOPLE and saved['dataset_path'] == [folders['first'], folders['second']]
        assert 'centers-000000004-000000008.npy' in os.listdir(str(both / 'model-0001.head'))
