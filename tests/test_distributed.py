"""Jobs of several real processes over Gloo, on this machine. tests/distributed_worker.py is what they run."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from common import rec2shufrec
from common.recordio import pack
from common.verification import write_bin
from tests.conftest import ROOT
from tests.distributed_worker import LEG, VARIANTS, embeddings, steps_of
from tests.launcher import job, needs_horovod
from tests.make_sets import identity_set, jpeg
from tests.tiny_runs import saved_arrays, tiny_run

pytestmark = needs_horovod

WORKER = '-m', 'tests.distributed_worker'
SMALL = ('train_parall.py', '--network', 'demo', '--dataset', 'casia', '--per-batch-size', '2', '--devices', 'cpu:1',
         '--set', 'val_targets=')
SECONDS = 30                         # after the end of one process all must be gone


def run_worker(folder, world_size, name, seconds=120):
    with job(folder / 'out', world_size, [*WORKER, name, str(folder)]) as running:
        return running.wait(seconds), running.text()


# Numbers

@pytest.fixture(scope='module')
def alone():
    """{variant: what one process with four devices learns}."""
    return {variant: steps_of(variant, 4) for variant in VARIANTS}


SLACK = {'half': 2e-2, 'fp16 exchange': 2e-3}       # a sum that differs in its last bit is rounded another way


@pytest.mark.parametrize('world_size', [2, 4])
def test_processes_and_devices_can_be_exchanged(tmp_path, alone, world_size):
    """1 x 4, 2 x 2 and 4 x 1 give one loss curve, one backbone and the same centers."""
    codes, text = run_worker(tmp_path, world_size, 'train')
    assert codes == [0] * world_size, text
    for variant, wanted in alone.items():
        parts = [dict(np.load(str(tmp_path / ('%s-%d.npz' % (variant, rank))))) for rank in range(world_size)]
        slack = dict.fromkeys(('rtol', 'atol'), SLACK.get(variant, 1e-5))
        assert set().union(*parts) == set(wanted)
        for part in parts:
            for name, array in part.items():
                np.testing.assert_allclose(array, wanted[name], err_msg='%s %s' % (variant, name), **slack)


def test_bytes_of_a_step_are_the_least_possible(tmp_path):
    codes, text = run_worker(tmp_path, 2, 'names')
    assert codes == [0, 0], text
    features = 6 * 16 * 4                                                  # sent once, and its gradient once back
    parameters = 4 * (8 * 3 * 9 + 16 * 8 * 25 + 16)
    least = 2 * features + 6 * 8 + 4 * 12 * 4 + parameters
    for rank in range(2):
        assert (tmp_path / ('sent-%d.txt' % rank)).read_text() == '%d %d' % (least, least)


@pytest.mark.parametrize('world_size', [2, 3])
def test_verification_is_divided_and_every_rank_knows_all(tmp_path, world_size):
    codes, text = run_worker(tmp_path, world_size, 'embed')
    assert codes == [0] * world_size, text
    wanted = embeddings(1, 14)
    for rank in range(world_size):
        found = np.load(str(tmp_path / ('embeddings-%d.npy' % rank)))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_folder_of_all_is_there_when_all_have_written(tmp_path):
    codes, text = run_worker(tmp_path, 3, 'write_together')
    assert codes == [0] * 3, text
    assert sorted(os.listdir(str(tmp_path / 'result'))) == ['part0', 'part1', 'part2']


def test_a_folder_that_one_could_not_write_does_not_appear(tmp_path):
    codes, text = run_worker(tmp_path, 2, 'fail_while_writing', SECONDS)
    assert 0 not in codes and 'No space left' in text
    assert not (tmp_path / 'result').exists()


# The whole program

@pytest.fixture
def face_set(tmp_path):
    """Folder of 10 classes x 6 images."""
    identity_set(tmp_path / 'set', 10, 6)
    return tmp_path / 'set'


def command(tmp_path, folder, *flags):
    return [*SMALL, '--dataset-path', str(folder), '--models-root', str(tmp_path / 'models'), *flags]


def test_one_log_one_backbone_and_each_rank_its_classes(tmp_path, face_set):
    write_bin(str(face_set / 'own.bin'), [jpeg(number) for number in range(14)], [True, False] * 3 + [True])
    flags = '--max-steps', '4', '--frequent', '1', '--verbose', '2', '--set', 'val_targets=own'
    with job(tmp_path / 'out', 2, command(tmp_path, face_set, *flags)) as running:
        assert running.wait(120) == [0, 0], running.text()
        assert 'step 4/4 epoch 0 loss' in running.text(0) and 'verification own at step 4' in running.text(0)
        assert re.search(r', \d+\.\d\d MB sent per step', running.text(0))
        assert 'step' not in running.text(1) and 'INFO' not in running.text(1)
    results = tmp_path / 'models' / 'demo-arcface-casia'
    assert (results / 'model.log').read_text().count('step 4/4') == 1
    heads = sorted(os.listdir(str(results / 'model-0000.head')))
    assert [name for name in heads if name.startswith('centers')] == [
        'centers-000000000-000000005.npy', 'centers-000000005-000000010.npy']
    assert not [name for name in os.listdir(str(results)) if 'partial' in name]


@pytest.mark.parametrize('world_size, shuffled', [(2, False), (3, False), (4, False), (2, True), (4, True)])
def test_103_records_in_batches_of_5(tmp_path, world_size, shuffled):
    """Parts of unequal size, several epochs: all ranks take the same number of steps."""
    folder = tmp_path / 'set'
    identity_set(tmp_path / 'indexed' if shuffled else folder, 103, 1)
    if shuffled:
        assert rec2shufrec.main(['--input', str(tmp_path / 'indexed'), '--output', str(folder)]) == 0
    flags = '--per-batch-size', '5', '--end-epoch', '5', '--ckpt', '0', '--set', 'is_shuffled_rec=%s' % shuffled
    with job(tmp_path / 'out', world_size, command(tmp_path, tmp_path / 'set', *flags)) as running:
        assert running.wait(180) == [0] * world_size, running.text()
        assert 'done: %d steps' % (5 * (103 // (5 * world_size))) in running.text(0)


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """One process, two, four, with four devices in all: as if it had never stopped."""
    identity_set(tmp_path / 'set', 12, 8)
    for world_size in 1, 2, 4:
        codes, text = run_worker(tmp_path, world_size, 'go_on')
        assert codes == [0] * world_size, text
    tiny_run(tmp_path / 'set', tmp_path / 'whole', 4, per_batch_size=3, max_steps=3 * LEG, net_name='plain')
    wanted, found = (saved_arrays(tmp_path / name, 3 * LEG) for name in ('whole', 'run'))
    assert set(wanted) == set(found)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


def test_shards_without_a_class(tmp_path):
    """Three classes on four shards: trained, saved, and gone on with in one process."""
    identity_set(tmp_path / 'set', 3, 8)
    codes, text = run_worker(tmp_path, 4, 'go_on')
    assert codes == [0] * 4, text
    options = {'per_batch_size': 12, 'max_steps': 2 * LEG, 'net_name': 'plain', 'num_classes': None}
    tiny_run(tmp_path / 'set', tmp_path / 'run', resume='auto', **options)
    tiny_run(tmp_path / 'set', tmp_path / 'whole', **options)
    wanted, found = (saved_arrays(tmp_path / name, 2 * LEG) for name in ('whole', 'run'))
    assert set(wanted) == set(found)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


def test_all_ranks_call_the_same_operations(tmp_path, face_set):
    """Reading, training, verifying, saving, the end: nothing collective is left to one rank."""
    write_bin(str(face_set / 'own.bin'), [jpeg(number) for number in range(14)], [True, False] * 3 + [True])
    flags = command(tmp_path, face_set, '--max-steps', '4', '--frequent', '1', '--verbose', '2', '--ckpt-every', '2',
                    '--ckpt', '2', '--set', 'val_targets=own')[1:]
    (tmp_path / 'flags.json').write_text(json.dumps(flags))
    codes, text = run_worker(tmp_path, 2, 'program')
    assert codes == [0, 0], text
    first, second = (json.loads((tmp_path / ('calls-%d.json' % rank)).read_text()) for rank in range(2))
    assert first == second
    assert first.count('allgather features') == 4 and 'allgather embeddings' in first
    assert first.count('exchange folder_begun') > 2


# Refused at start

@pytest.mark.parametrize('flags, said', [
    (('--lr', '0.3'), 'rank 1 does not fit the others: lr is 0.3 there and 0.1 in rank 0'),
    (('--devices', 'cpu:2'), 'rank 1 does not fit the others: number of devices is 2 there and 1 in rank 0'),
    (('--dataset-path', 'other'), "rank 1 does not fit the others: data is '"),
    (('--dataset-path', 'nowhere'), 'rank 1: missing: '),
], ids=['setting', 'devices', 'data', 'no data'])
def test_a_rank_that_differs_is_named(tmp_path, face_set, flags, said):
    identity_set(tmp_path / 'other', 10, 6, images={5: pack(0, jpeg(99), 5)})
    flags = [str(tmp_path / flag) if flag in ('other', 'nowhere') else flag for flag in flags]
    with job(tmp_path / 'out', 2, lambda rank: command(tmp_path, face_set, *(flags if rank else ()))) as running:
        codes = running.wait(60)
        assert 0 not in codes
        for rank in range(2):
            assert said in running.text(rank) and 'Traceback' not in running.text(rank)


def differing_verification(folder):
    for number, same in enumerate(([True, False], [True, False, True])):
        write_bin(str(folder[number] / 'own.bin'), [jpeg(one) for one in range(2 * len(same))], same)


@pytest.mark.parametrize('case', ['classes', 'verification', 'program'])
def test_a_rank_with_other_files_is_named(tmp_path, face_set, case):
    other, program = tmp_path / 'other', ROOT
    identity_set(other, 11 if case == 'classes' else 10, 6)
    if case == 'verification':
        differing_verification((face_set, other))
    if case == 'program':
        program = copy_of_the_program(tmp_path / 'program')
    said = {'classes': 'num_classes is 11 there and 10 in rank 0', 'program': "program is '",
            'verification': "verification sets is [['own', 3]] there and [['own', 2]] in rank 0"}[case]

    def one(rank):
        whole = command(tmp_path, other if rank else face_set, '--set', 'val_targets=own')
        return [str((program if rank else ROOT) / whole[0]), *whole[1:]]
    with job(tmp_path / 'out', 2, one) as running:
        assert 0 not in running.wait(60)
        for rank in range(2):
            assert 'rank 1 does not fit the others: ' in running.text(rank) and said in running.text(rank)
            assert no_traceback(running.text(rank))


def copy_of_the_program(folder):
    """One line longer than this one."""
    for name in ('common', 'recognition', 'symbols'):
        shutil.copytree(str(ROOT / name), str(folder / name), ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('config.py', 'train_parall.py'):
        shutil.copy(str(ROOT / name), str(folder / name))
    with open(str(folder / 'recognition' / 'head.py'), 'a') as stream:
        stream.write('# another version\n')
    return folder


def test_a_batch_that_devices_cannot_share_is_refused(tmp_path, face_set):
    with job(tmp_path / 'out', 2, command(tmp_path, face_set, '--per-batch-size', '64')) as running:
        assert 0 not in running.wait(60)
        assert '60 images < global batch 128 (64 per process x 2 processes)' in running.text(0)


# Ends

ENDLESS = '--max-steps', '100000', '--frequent', '1', '--ckpt', '0'


def no_traceback(text):
    return 'Traceback' not in text


@pytest.mark.parametrize('number, rank', [(signal.SIGKILL, 1), (signal.SIGKILL, 0)])
def test_all_end_when_one_is_killed(tmp_path, face_set, number, rank):
    with job(tmp_path / 'out', 3, command(tmp_path, face_set, *ENDLESS)) as running:
        running.wait_for('step 3/', 0)
        running.processes[rank].send_signal(number)
        codes = running.wait(SECONDS)
        assert 0 not in codes
        for other in {0, 1, 2} - {rank}:
            assert 'rank %d lost the other processes: rank %d ended' % (other, rank) in running.text(other)
            assert no_traceback(running.text(other))


def test_after_a_kill_fewer_processes_go_on_from_the_last_state(tmp_path, face_set):
    flags = '--max-steps', '100000', '--frequent', '1', '--ckpt-every', '2'
    with job(tmp_path / 'out', 3, command(tmp_path, face_set, *flags)) as running:
        running.wait_for('step 7/', 0)
        running.processes[2].kill()
        assert 0 not in running.wait(SECONDS)
    newest = max(path.name for path in tmp_path.glob('models/*/model-state/step-*'))
    more = '--resume', 'auto', '--max-steps', str(int(newest[5:]) + 2), '--per-batch-size', '3', '--ckpt-every', '0'
    with job(tmp_path / 'more', 2, command(tmp_path, face_set, *more)) as running:
        assert running.wait(60) == [0, 0], running.text()
        assert 'resumed from' in running.text(0) and 'cannot be used' not in running.text(0)


@pytest.mark.parametrize('number, ranks', [(signal.SIGINT, [0, 1]), (signal.SIGTERM, [1])])
def test_a_signal_saves_and_ends_all(tmp_path, face_set, number, ranks):
    """Also one that a single rank gets; the state is one that fewer processes go on from."""
    flags = '--max-steps', '100000', '--frequent', '1', '--set', 'val_targets='
    with job(tmp_path / 'out', 2, command(tmp_path, face_set, *flags)) as running:
        running.wait_for('step 3/', 0)
        for rank in ranks:
            running.processes[rank].send_signal(number)
        assert running.wait(SECONDS) == [128 + number] * 2, running.text()
        assert 'stopped by %s after step' % number.name in running.text(0) and no_traceback(running.text())
    stopped = int(re.search(r'after step (\d+)', running.text(0)).group(1))
    more = ['--max-steps', str(stopped + 2), '--frequent', '1', '--resume', 'auto', '--per-batch-size']
    for world_size, batch in (2, '2'), (1, '4'):
        with job(tmp_path / ('out%d' % world_size), world_size,
                 command(tmp_path, face_set, *more, batch, '--ckpt-every', '0')) as running:
            assert running.wait(60) == [0] * world_size, running.text()
            assert 'after step %d, epoch' % stopped in running.text(0)


def test_a_wrong_label_is_found_by_all(tmp_path):
    path = identity_set(tmp_path / 'set', 10, 6, images={44: pack(99, jpeg(43), 44)})
    with job(tmp_path / 'out', 2, command(tmp_path, os.path.dirname(path), *ENDLESS)) as running:
        assert 0 not in running.wait(60)
        for rank in range(2):
            assert 'error: rank 0: label 99 outside' in running.text(rank)
            assert no_traceback(running.text(rank))


def test_a_reader_that_fails_on_one_rank_ends_all_with_its_message(tmp_path):
    broken = {key: pack((key - 1) // 6, b'nothing', key) for key in range(4, 60, 4)}
    path = identity_set(tmp_path / 'set', 10, 6, images=broken)
    with job(tmp_path / 'out', 2, command(tmp_path, os.path.dirname(path), *ENDLESS)) as running:
        assert 0 not in running.wait(60)
        assert re.search(r'error: .* corrupt images in one epoch', running.text()), running.text()
        assert running.text().count('error: ') == 2 and no_traceback(running.text())


def test_a_reader_that_fails_on_one_rank_only_ends_the_others(tmp_path, face_set):
    (tmp_path / 'flags.json').write_text(json.dumps(command(tmp_path, face_set, *ENDLESS)[1:]))
    with job(tmp_path / 'out', 3, [*WORKER, 'broken_reader', str(tmp_path)]) as running:
        running.wait_for('error: train.rec cannot be read any more', 2)
        assert 0 not in running.wait(SECONDS)
        for rank in range(2):
            assert 'rank %d lost the other processes: rank 2 ended, and its own message says why' % rank \
                in running.text(rank)
            assert no_traceback(running.text(rank))


def test_the_benchmark_of_processes_sends_no_more_than_it_has_to():
    benchmark = '-m benchmarks.distributed --classes 500 --batch 8 --rounds 1 --steps 2'.split()
    done = subprocess.run([sys.executable, *benchmark], cwd=str(ROOT), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    sent, least = map(int, done.stdout.splitlines()[-1].split('|')[6:8])
    assert sent == least + 8 * 4                  # 16 bytes of statistics per image are gathered instead of 12
