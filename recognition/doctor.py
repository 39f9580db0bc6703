"""What of this machine and its environment training needs, each with a verdict and, if it is not good, the remedy."""
import contextlib
import importlib.util
import logging
import math
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import namedtuple

import numpy as np

from common.errors import UserError
from common.files import nearest_folder
from common.memory import available_memory

try:
    import resource
except ImportError:                  # not a POSIX system
    resource = None

log = logging.getLogger('shardface')

OK, WARN, FAIL = 'ok', 'warn', 'fail'
Finding = namedtuple('Finding', 'verdict subject text')

GB, MB = 1 << 30, 1 << 20
PYTHONS = (3, 8), (3, 13)
LEAST_JPEGS = 1000                   # images of 112x112 per second that a thread of a slow processor decodes
LEAST_DISK_MB = 20                   # per second
LEAST_ROOM = 5 * GB                  # checkpoints and training states of a million identities
LEAST_MEMORY = 2 * GB
LEAST_SHARED = 256 * MB              # NCCL exchanges through it; containers have 64 MB unless told otherwise
LEAST_FILES = 1024
DISK_FILE = 32 * MB
DECODING_SECONDS = 0.5
SECONDS_FOR_HOROVOD = 20
STEPS, IMAGES_PER_DEVICE, CLASSES, IMAGES_PER_CLASS, SIDE = 5, 4, 64, 4, 112   # 64 CPU devices have enough of them
NETWORK = dict(net_name='fmobilefacenet', emb_size=64, net_output='GDC', net_act='prelu', net_blocks=[1, 1, 1, 1],
               net_multiplier=0.25)


def examine(request, models_root, num_threads, get_backbone):
    """Yield the Findings, one check after the other, in less than half a minute. None of the checks raises.

    request: Request for devices; num_threads: text of OMP_NUM_THREADS; get_backbone: as for build_trainer.
    """
    yield from run_check('Python', check_python)
    yield from run_check('packages', check_packages)
    yield from run_check('devices', check_devices, request)
    yield from run_check('processor', check_processor, num_threads)
    yield from run_check('memory', check_memory)
    yield from run_check('shared memory', check_shared_memory)
    yield from run_check('open files', check_open_files)
    yield from run_check('images', check_images)
    yield from run_check('disk', check_disk, models_root)
    yield from run_check('Horovod', check_horovod)
    yield from run_check('training', check_training, request, get_backbone)


def run_check(subject, check, *arguments):
    """Yield a Finding for each (verdict, text) that a check yields, or that it failed and why."""
    try:
        for verdict, text in check(*arguments):
            yield Finding(verdict, subject, text)
    except UserError as error:
        yield Finding(FAIL, subject, ' '.join(str(error).split()))
    except Exception as error:       # whatever is broken in a library is what this program is asked to find
        words = ' '.join(str(error).split())
        yield Finding(FAIL, subject, '%s: %s' % (type(error).__name__, words[:300]))


def exit_code(findings):
    return 1 if any(finding.verdict == FAIL for finding in findings) else 0


def line_of(finding):
    return '%-4s  %-13s  %s' % finding


def at_least(value, lowest, text, remedy):
    """(verdict, text) of a measure: a warning with the remedy if it is lower."""
    return (OK, text) if value >= lowest else (WARN, '%s: %s' % (text, remedy))


def check_python():
    known = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    text = '%s, %s' % (platform.python_version(), platform.platform())
    yield (OK, text) if known else (WARN, '%s: 3.8 to 3.13 are tested' % text)


def check_packages():
    yield OK, 'NumPy %s, OpenCV %s' % (np.__version__, opencv_version())
    from common.mxnet_loader import mx
    yield OK, 'MXNet %s (%s)' % (mx.__version__, os.path.dirname(mx.__file__))


def opencv_version():
    try:
        import cv2
    except ImportError as error:
        raise UserError('OpenCV does not start (%s): pip uninstall opencv-python opencv-python-headless, then pip '
                        'install opencv-python-headless, which needs no libraries of a desktop' % error) from None
    return cv2.__version__


def check_devices(request):
    from common.cuda_libraries import gpu_capabilities
    from common.mxnet_loader import mx
    from recognition.devices import GPU, contexts
    capabilities = gpu_capabilities()
    for context in contexts(request):
        if context.device_type != GPU:
            yield OK, str(context)
            continue
        free, total = mx.context.gpu_memory_info(context.device_id)
        known = capabilities[context.device_id:context.device_id + 1]
        yield OK, '%s, %.1f of %.1f GB free%s' % (context, free / GB, total / GB, ''.join(
            ', compute capability %d.%d' % one for one in known))
    if capabilities and not mx.context.num_gpus():
        yield WARN, "the driver sees %d GPUs, this MXNet none: pip uninstall mxnet, then pip install '.[gpu]'" % len(
            capabilities)


def check_processor(num_threads):
    from recognition.batch_decoder import usable_cores
    cores = usable_cores()
    text = '%d cores, %s threads per CPU device' % (cores, num_threads)
    too_many = num_threads.isdigit() and int(num_threads) > cores
    yield (WARN, '%s: unset OMP_NUM_THREADS' % text) if too_many else (OK, text)


def check_memory():
    free = available_memory()
    if free is None:
        yield WARN, 'this system does not say how much is free: watch it while training'
        return
    yield at_least(free, LEAST_MEMORY, '%.1f GB free' % (free / GB),
                   'end other programs, or raise the limit of the container')


def check_shared_memory(folder='/dev/shm'):
    if not os.path.isdir(folder):
        yield WARN, 'no %s: several processes on GPUs may need it' % folder
        return
    size = shutil.disk_usage(folder).total
    yield at_least(size, LEAST_SHARED, '%s of %.2f GB' % (folder, size / GB),
                   'several processes on GPUs need more: docker run --shm-size=1g')


def check_open_files():
    if resource is None:
        yield OK, 'no limit on this system'
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = math.inf
    yield at_least(limit, LEAST_FILES, 'limit of %s' % limit, 'ulimit -n 4096')


def check_images():
    from common.images import decode_rgb
    encoded, count = synthetic_jpeg(0), 0
    out = np.empty((3, SIDE, SIDE), np.uint8)
    begin = time.perf_counter()
    while time.perf_counter() - begin < DECODING_SECONDS:
        for _ in range(50):
            decode_rgb(encoded, (SIDE, SIDE), out)
        count += 50
    speed = count / (time.perf_counter() - begin)
    yield at_least(speed, LEAST_JPEGS, '%.0f JPEGs of 112x112 a second and thread' % speed,
                   'other programs take the processor, or OpenCV is built without a fast JPEG library: '
                   'pip install --force-reinstall opencv-python-headless')


def synthetic_jpeg(number):
    """Bytes of a smooth picture in colours, another one for every number."""
    import cv2
    small = np.random.RandomState(number).randint(0, 256, (7, 7, 3)).astype(np.uint8)
    return cv2.imencode('.jpg', cv2.resize(small, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC))[1].tobytes()


def check_disk(models_root):
    """Speed of writing (until it is on the disk) and reading, in the folder that will hold the results."""
    folder = nearest_folder(models_root)
    try:
        written, read = disk_speeds(folder)
        room = shutil.disk_usage(folder).free
    except OSError as error:
        raise UserError('cannot write into %s: %s; choose another --models-root' % (folder, error.strerror)) from None
    yield at_least(min(written, read), LEAST_DISK_MB, '%s: %.0f MB/s written, %.0f MB/s read' % (folder, written, read),
                   'saving will hold up training; choose a --models-root on a faster disk')
    yield at_least(room, LEAST_ROOM, '%.1f GB free' % (room / GB), 'checkpoints may not fit; free some, or choose '
                                                                   'another --models-root')


def disk_speeds(folder):
    """(MB/s written, MB/s read) of a temporary file. OSError."""
    data = np.random.RandomState(0).bytes(DISK_FILE)
    with tempfile.NamedTemporaryFile(dir=folder, prefix='.doctor-', suffix='.partial', buffering=0) as stream:
        begin = time.perf_counter()
        for start in range(0, DISK_FILE, MB):
            stream.write(data[start:start + MB])
        os.fsync(stream.fileno())
        middle = time.perf_counter()
        if hasattr(os, 'posix_fadvise'):         # or it would come out of memory; where it cannot be told, it does
            os.posix_fadvise(stream.fileno(), 0, DISK_FILE, os.POSIX_FADV_DONTNEED)
        stream.seek(0)
        begin_reading = time.perf_counter()
        while stream.read(MB):
            pass
        end = time.perf_counter()
    return DISK_FILE / 1e6 / (middle - begin), DISK_FILE / 1e6 / (end - begin_reading)


def check_horovod():
    """Its capabilities, and two processes that try every operation."""
    from recognition.collective import INSTALL, horovod_capabilities
    from recognition.install_horovod import check
    if importlib.util.find_spec('horovod') is None:
        yield OK, 'not installed; only training over several processes needs it: %s' % INSTALL
        return
    yield OK, horovod_capabilities()
    check(None, SECONDS_FOR_HOROVOD)
    yield OK, 'two processes exchanged every kind of array'


def check_training(request, get_backbone):
    """STEPS steps of a small network on synthetic faces, on all devices that are asked for."""
    from recognition.build import build_trainer
    from recognition.collective import LocalCollective
    from recognition.devices import contexts
    devices = contexts(request)
    with tempfile.TemporaryDirectory(prefix='doctor-') as folder, silent():
        cfg = training_settings(synthetic_set(folder))
        begin = time.perf_counter()
        trainer = build_trainer(cfg, get_backbone, devices, os.path.join(folder, 'model'), LocalCollective())
        trainer.fit()
        seconds = time.perf_counter() - begin
        trainer.train_iter.close()
    if trainer.stop.reason:
        raise UserError('interrupted by %s' % trainer.stop.reason)
    yield OK, '%d steps on %s in %.1f s' % (STEPS, ', '.join(map(str, devices)), seconds)


def training_settings(folder):
    from recognition.settings import complete, defaults
    return complete(dict(defaults(), **NETWORK, num_classes=CLASSES, image_shape=[SIDE, SIDE, 3], dataset_path=folder,
                         val_targets=[], per_batch_size=IMAGES_PER_DEVICE, lr=0.01, loss_m2=0.5, frequent=1,
                         max_steps=STEPS, ckpt=0, report=False))


def synthetic_set(folder):
    """Write an indexed set into a folder; returns the folder."""
    from common.identity_set import write_identity_set
    images = map(synthetic_jpeg, range(CLASSES * IMAGES_PER_CLASS))
    write_identity_set(folder, images, [IMAGES_PER_CLASS] * CLASSES, (SIDE, SIDE))
    return folder


@contextlib.contextmanager
def silent():
    """Only warnings are logged while the block runs."""
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)
