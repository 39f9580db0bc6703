"""The memory plan: every part against numbers worked out by hand, the whole against what is measured on CPUs."""
import json
import os
import subprocess
import sys
import types

import pytest

import train_parall
from common.errors import UserError
from common.memory import available_memory
from common.mxnet_loader import mx
from recognition import plan_check
from recognition.backbone_memory import BackboneMemory, measure_backbone
from recognition.block_step import Scratch
from recognition.collective import LocalCollective
from recognition.head import HeadShard
from recognition.margin import Margin
from recognition.plan import CPU_RUNTIME, GB, GPU_RUNTIME, GPU_WORKSPACE, Hardware, Plan, head_parts, largest
from recognition.plan_text import advice, report
from recognition.settings import complete
from tests.conftest import ROOT
from tests.make_sets import identity_set
from tests.tiny import tiny_symbol

NETWORK = BackboneMemory(parameters=1000, float32=1000, masters=0, auxiliary=10, fixed=7, activations=300, largest=50)
HALF = BackboneMemory(parameters=500, float32=1000, masters=1000, auxiliary=10, fixed=7, activations=150, largest=25)


ALONE = LocalCollective()


def plan(kind='gpu', count=1, capacity=None, host=None, **settings):
    given = dict({'num_classes': 100, 'image_shape': [8, 8, 3], 'per_batch_size': 4, 'emb_size': 16}, **settings)
    return Plan(complete(given), {False: NETWORK, True: HALF}, Hardware(kind, count, capacity, host))


# The network

def test_parts_of_a_network():
    """Images (3, 12, 12): 8 filters of 3 x 3 x 3; then 16 x (8 * 5 * 5) and 16."""
    memory = measure_backbone(tiny_symbol(), (3, 12, 12))
    assert memory.parameters == memory.float32 == 4 * (8 * 27 + 16 * 200 + 16)
    assert (memory.masters, memory.auxiliary, memory.largest) == (0, 0, 4 * 3 * 12 * 12)


def test_nothing_is_allocated_to_measure_a_network():
    wide = mx.sym.FullyConnected(mx.sym.Cast(mx.sym.Variable('data'), dtype='float32'), num_hidden=1 << 17)
    assert measure_backbone(wide, (3, 64, 64)).parameters == 4 * ((3 * 64 * 64 << 17) + (1 << 17))      # 6 GB


# The head

def test_parts_of_a_head():
    """10 classes in blocks of 4: 4, 3 and 3. N = 2, D = 8."""
    parts = dict(head_parts(10, 2, 8, True, block_size=4))
    assert parts['class centers'] == parts['their momentum'] == 10 * 8 * 4
    assert parts['logits'] == 2 * 10 * 4 and parts['centers picked for a step'] == 0
    assert parts['block buffers'] == 4 * (2 * 4 + 4 * 8 + 2 * 2 * 8) + 5 * 4 * 10
    assert parts['features and statistics'] == 4 * 3 * 2 * 8 + 4 * 3 * 2 * 3
    assert dict(head_parts(10, 2, 8, False, block_size=4))['logits'] == 2 * 4 * 4


def test_parts_of_a_sampled_head():
    """A tenth of blocks of 40 is 4 classes, but the 6 rows of the batch may all be of one block."""
    parts = dict(head_parts(80, 6, 8, True, ratio=0.1, block_size=40))
    assert parts['centers picked for a step'] == (6 + 6 + 6) * 8 * 4
    assert parts['logits'] == 6 * 12 * 4 and parts['class centers'] == 80 * 8 * 4


def test_products_in_half_precision_have_buffers():
    """A float32 and a float16 array (K, D), and (N, K), of the largest block."""
    parts = dict(head_parts(10, 2, 8, True, block_size=4, is_half=True))
    assert parts['half precision operands'] == (4 + 2) * (4 * 8 + 2 * 4)


def test_a_shard_without_classes():
    parts = dict(head_parts(0, 2, 8, True))
    assert parts['class centers'] == parts['logits'] == 0


def arrays(value):
    """Bytes of the arrays that an object holds itself, in lists too."""
    if isinstance(value, mx.nd.NDArray):
        return value.size * value.dtype(0).itemsize
    return sum(map(arrays, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize('sub_centers', [1, 3])
@pytest.mark.parametrize('keeps_logits', [True, False])
def test_the_plan_knows_the_arrays_of_a_shard(keeps_logits, sub_centers):
    parts = dict(head_parts(100, 6, 8, keeps_logits, block_size=40, is_cosine=False, sub_centers=sub_centers))
    scratch = sum(map(arrays, vars(Scratch(6, [34, 33, 33], 8, mx.cpu(), keeps_logits, sub_centers)).values()))
    assert parts['logits'] + parts['nearest centers'] + parts['block buffers'] == scratch
    shard = HeadShard.initial(0, 100, 8, mx.cpu(), Margin(1, 0.5, 0), 0, block_size=40, sub_centers=sub_centers)
    held = sum(arrays(array) for block in shard.blocks for array in block.arrays().values())
    assert held == parts['class centers'] + parts['their momentum']


# The whole

def test_sum_of_one_gpu():
    head = sum(size for _, size in head_parts(100, 4, 16, True))
    assert plan().need == 3 * 1000 + 10 + 7 + 4 * 300 + 4 * 192 + head + GPU_WORKSPACE + GPU_RUNTIME
    assert sum(plan().host.values()) == 1000 + 10 + 6 * 4 * 192 + CPU_RUNTIME


def test_cpu_devices_share_one_memory():
    """Two devices: parameters, gradients and sums on each; weights and momentum of the kvstore once."""
    found, head = plan('cpu', 2), sum(size for _, size in head_parts(50, 8, 16, True))
    device = 2000 + 500 + 1500 + 10 + 7 + 4 * 300 + 4 * 192 + head + 4 * 50
    assert found.need == 2 * device + 1000 + 10 + 6 * 8 * 192 + CPU_RUNTIME


def test_processes_share_the_classes_and_the_memory_of_a_machine(monkeypatch):
    """100 classes on 2 devices in each of 5 processes: 10 each; 4 images on each of 10 devices."""
    found = Plan(plan().cfg, plan().memories, Hardware('gpu', 2, None, None, processes=5))
    for name, size in head_parts(10, 40, 16, True):
        assert found.device[name] == size
    monkeypatch.setattr(plan_check, 'available_memory', lambda: 900)
    place = types.SimpleNamespace(world_size=5, local_size=3, local_rank=0)
    assert plan_check.hardware_of([('cpu', 0)], None, place) == Hardware('cpu', 1, None, 300, 5)


def test_half_precision_keeps_float32_masters_and_momentum():
    parts = plan(fp16=True).device
    assert [parts[name] for name in ('backbone parameters', 'backbone gradients', 'backbone momentum',
                                     'float32 master weights')] == [500, 500, 1000, 1000]


def test_kvstore_local_sums_on_the_host():
    found = plan(count=2, kvstore='local')
    assert found.device['sums of gradients'] == found.device['backbone momentum'] == 0
    assert found.host['kvstore'] == 1000 + 3 * 1000 + 1000


def test_shuffled_sets_have_a_buffer():
    assert plan(is_shuffled_rec=True, shuffle_chunk_size=3).host['shuffle buffer'] == 3 << 20


def test_auto_is_fast_if_that_fits():
    fast, lean = (plan(head_memory=way, num_classes=10**6).need for way in ('fast', 'lean'))
    assert fast > lean
    assert plan(capacity=fast, num_classes=10**6).head_memory == 'fast'
    assert plan(capacity=fast - 1, num_classes=10**6).head_memory == 'lean'
    assert plan(capacity=lean, num_classes=10**6).fits and not plan(capacity=lean - 1, num_classes=10**6).fits


def test_limits_are_where_it_stops_to_fit():
    found = plan(capacity=3 * GB, num_classes=10**6)
    images, classes = found.most_images(), found.most_classes()
    assert found.changed(per_batch_size=images).fits and not found.changed(per_batch_size=int(images * 1.002) + 1).fits
    assert found.changed(num_classes=classes).fits and not found.changed(num_classes=int(classes * 1.002)).fits


def test_number_of_devices_that_fits():
    found = plan(count=2, capacity=3 * GB, num_classes=10**8, head_memory='lean')
    devices = found.least_devices()
    assert found.changed(count=devices).fits and not found.changed(count=devices - 1).fits
    assert plan('cpu', 2, host=1, num_classes=10**8).least_devices() == 0


def test_largest():
    assert [largest(lambda number, bound=bound: number <= bound, 100) for bound in (0, 1, 2, 63, 99, 100, 101)] == [
        0, 1, 2, 63, 99, 100, 100]


def test_the_host_has_to_fit_too():
    assert not plan(capacity=10 * GB, host=CPU_RUNTIME).fits
    assert 'does not fit' in '\n'.join(report(plan(capacity=10 * GB, host=CPU_RUNTIME)))


def test_advice_names_what_fits():
    need = plan(num_classes=10**7, per_batch_size=64, head_memory='fast').need
    found = plan(capacity=need - 1, num_classes=10**7, per_batch_size=64, head_memory='fast')
    for flags in ('--head-memory lean', '--sample-ratio', '--per-batch-size', 'on 2 devices'):
        assert flags in advice(found)
    assert 'none of' in advice(plan(capacity=1))


# Memory of the machine

def make_files(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize('files, megabytes', [
    ({}, 900),
    ({'sys/fs/cgroup/a/b/memory.max': 'max\n', 'sys/fs/cgroup/a/b/memory.current': '5\n'}, 900),
    ({'sys/fs/cgroup/a/memory.max': str(500 << 20), 'sys/fs/cgroup/a/memory.current': str(300 << 20)}, 200),
    ({'sys/fs/cgroup/a/memory.max': str(500 << 20), 'sys/fs/cgroup/a/memory.current': str(300 << 20),
      'sys/fs/cgroup/a/memory.stat': 'anon 5\ninactive_file %d\n' % (50 << 20)}, 250),
    ({'proc/self/cgroup': '4:memory:/x\n', 'sys/fs/cgroup/memory/x/memory.limit_in_bytes': str(100 << 20),
      'sys/fs/cgroup/memory/x/memory.usage_in_bytes': str(120 << 20)}, 0),
    ({'proc/self/cgroup': '4:cpu:/x\n'}, 900),
])
def test_available_memory(tmp_path, files, megabytes):
    make_files(tmp_path, dict({'proc/meminfo': 'MemFree: 1 kB\nMemAvailable: %d kB\n' % (900 << 10),
                               'proc/self/cgroup': '0::/a/b\n'}, **files))
    assert available_memory(str(tmp_path)) == megabytes << 20


def test_available_memory_of_a_system_that_does_not_tell(tmp_path):
    assert available_memory(str(tmp_path)) is None


def test_memory_of_gpus(monkeypatch):
    monkeypatch.setattr(mx.context, 'gpu_memory_info', lambda number: ((9 - number) * GB, 10 * GB))
    assert plan_check.hardware_of([('gpu', 0), ('gpu', 3)], None, ALONE).capacity == 6 * GB
    assert plan_check.hardware_of([('gpu', 0)], 24.0, ALONE) == Hardware('gpu', 1, 24 * GB, None)
    assert plan_check.hardware_of([('cpu', 0), ('cpu', 1)], 2.0, ALONE) == Hardware('cpu', 2, 2 * GB, 4 * GB)


def test_gpu_that_does_not_tell():
    with pytest.raises(UserError, match='memory of GPU 99 is not known: give it with --set device_memory'):
        plan_check.free_gpu_memory(99)


# The command line

@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Call main() in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')

    def call(*flags):
        code = train_parall.main(list(flags))
        return (code,) + tuple(capsys.readouterr())
    return call


def test_plan_without_data_or_devices(command, tmp_path):
    code, out, _ = command(*('--plan --network r18 --devices gpu:0,1,2,3 --set device_memory=24 '
                             '--set num_classes=1000000').split())
    assert code == 0 and '1000000 classes' in out and 'of 24.00 GB, per device: fits' in out
    assert list(tmp_path.iterdir()) == []


def test_plan_that_does_not_fit(command):
    code, out, _ = command(*'--plan --network y1 --devices gpu:0,1 --set device_memory=24 '
                             '--set num_classes=100000000'.split())
    assert code == 1 and 'does not fit' in out and 'on 7 devices' in out


@pytest.mark.parametrize('flags, said', [
    ('--dataset casia --devices cpu', 'give --set num_classes=...'),
    ('--dataset emore --devices gpu', 'say how many, such as --devices gpu:0,1'),
    ('--dataset emore --devices gpu:99', 'give it with --set device_memory=GB'),
])
def test_plan_that_lacks_a_number(command, flags, said):
    code, _, error = command('--plan', *flags.split())
    assert code in (1, 2) and said in error and error.count('error: ') == 1


def test_plan_takes_the_classes_of_a_set(command, tmp_path):
    identity_set(tmp_path / 'set', 3, 2)
    code, out, _ = command('--plan', '--dataset', 'casia', '--network', 'y1', '--dataset-path', 'set')
    assert code == 0 and ' 3 classes' in out


RUN = ('--dataset casia --dataset-path set --network demo --devices cpu --per-batch-size 2 --max-steps 1 --ckpt 0 '
       '--set device_memory=0.05').split()


def test_run_that_cannot_fit_is_refused(command, tmp_path):
    identity_set(tmp_path / 'set', 3, 2)
    code, _, error = command(*RUN)
    assert code == 1 and 'error: memory: ' in error and '--no-plan-check tries all the same' in error
    assert 'memory plan: demo, 3 classes' in error and 'done: ' not in error


def test_no_plan_check(command, tmp_path):
    identity_set(tmp_path / 'set', 3, 2)
    code, _, error = command(*RUN, '--no-plan-check')
    assert code == 0 and 'done: 1 steps' in error and '--head-memory lean, chosen by the plan' in error


# Against measurement

@pytest.mark.slow
@pytest.mark.parametrize('settings', [
    {'network': 'demo', 'emb_size': 512, 'num_classes': 150000, 'per_batch_size': 32, 'head_memory': 'lean'},
    {'network': 'demo', 'emb_size': 512, 'num_classes': 150000, 'per_batch_size': 128, 'head_memory': 'fast'},
    {'network': 'demo', 'emb_size': 512, 'num_classes': 120000, 'per_batch_size': 32, 'sample_ratio': 0.3},
    {'network': 'r18', 'num_classes': 1000, 'per_batch_size': 5},
    {'network': 'r18', 'num_classes': 1000, 'per_batch_size': 2, 'num_devices': 2},
    {'network': 'y1', 'num_classes': 1000, 'per_batch_size': 11},
    {'network': 'y1', 'num_classes': 1000, 'per_batch_size': 8, 'fp16': True},
    {'network': 'demo', 'emb_size': 512, 'num_classes': 150000, 'per_batch_size': 16, 'fp16': True},
], ids=lambda settings: '-'.join(map(str, settings.values())))
def test_plan_against_measurement(settings):
    done = subprocess.run([sys.executable, '-m', 'tests.measured_run', json.dumps(settings)], cwd=str(ROOT),
                          env=dict(os.environ, OMP_NUM_THREADS='1'), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert sizes['measured'] > 600 << 20
    assert sizes['planned'] == pytest.approx(sizes['measured'], rel=0.1)
