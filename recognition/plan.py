"""The memory plan: what a training will allocate on each device, computed before anything is.

B images per device and step, n devices of all processes, N = n B; D embedding size, C_s classes of a shard, K of its
largest block. All sizes are bytes. The parts follow recognition/block_step.py, backbone.py and batch_iter.py; tests
compare the sum with what is measured on CPUs. On GPUs three figures are assumptions: GPU_RUNTIME, GPU_WORKSPACE and
MXNet's planning, which is asked of its CPU form. Buffers of Horovod are not counted.
"""
import math
from collections import OrderedDict, namedtuple

from recognition.batch_iter import BATCHES_AHEAD
from recognition.class_block import default_block_size
from recognition.devices import CPU
from recognition.sampling import Sampler
from recognition.sharding import block_sizes, shard_range

GB = 1 << 30
FLOAT = 4
CPU_RUNTIME = 48 << 20       # threads, compiled kernels and tables of a process that trains
GPU_RUNTIME = 1 << 30        # CUDA context, kernels, cuBLAS and cuDNN
GPU_WORKSPACE = 1 << 30      # the most that MXNet lets a convolution take for a faster algorithm
SCALE_ARRAYS = 5             # per class that takes part: squares, inverse norms, factors
HALF_ARRAYS = 1.5            # (K, D) and (N, K), counted in float32: buffers of products in half precision
FEATURE_ARRAYS = 3           # (N, D) on each device besides the shard's scratch: the features, a sum, its next term
NEARLY = 0.9                 # share of a device that is full enough to say so
MOST_CLASSES, MOST_IMAGES, MOST_DEVICES = 1 << 33, 1 << 16, 1 << 10      # where the searches end

# kind and capacity (bytes, None: unknown) of the `count` devices of one process; host: bytes of the machine's memory
# for that process, None: unknown; processes: how many train together.
Hardware = namedtuple('Hardware', 'kind count capacity host processes', defaults=(1,))


class Plan:
    """cfg: settings with num_classes and image_shape known. memories: {fp16: BackboneMemory} of the network they name,
    for both precisions or the one of cfg.

    device and host are {part: bytes}: of the device with the most classes, and of the process itself. On CPUs the
    devices and the process share one memory.
    """

    def __init__(self, cfg, memories, hardware):
        self.cfg, self.memories, self.hardware = cfg, memories, hardware
        self.memory = memories[bool(cfg['fp16'])]
        self.keeps_logits = cfg['head_memory'] != 'lean'
        if cfg['head_memory'] == 'auto':
            self.keeps_logits = self.changed(head_memory='fast').fits
        self.device = OrderedDict(self._backbone() + self._head() + self._runtime())
        self.host = OrderedDict(self._host())

    @property
    def head_memory(self):
        """'fast' or 'lean': what 'auto' stands for here, too."""
        return 'fast' if self.keeps_logits else 'lean'

    @property
    def need(self):
        """Bytes that have to fit into `capacity`: of one GPU, or of all CPU devices and the process together."""
        used = sum(self.device.values())
        return used * self.hardware.count + sum(self.host.values()) if self.hardware.kind == CPU else used

    @property
    def capacity(self):
        shared = self.hardware.kind == CPU
        return self.hardware.host if shared else self.hardware.capacity

    @property
    def fits(self):
        """Whether all fits, as far as sizes are known."""
        pairs = [(self.need, self.capacity), (sum(self.host.values()), self.hardware.host)]
        return all(capacity is None or need <= capacity for need, capacity in pairs)

    @property
    def is_tight(self):
        """Whether a small error of the plan could make the difference."""
        return self.capacity is not None and self.need > NEARLY * self.capacity

    def changed(self, count=None, **settings):
        """The plan of the same network with other settings or another number of devices."""
        hardware = self.hardware._replace(count=count or self.hardware.count)
        return Plan(dict(self.cfg, **settings), self.memories, hardware)

    def most_classes(self):
        """Largest number of classes that fits with all else as it is; 0 if none does."""
        return largest(lambda number: self.changed(num_classes=number).fits, MOST_CLASSES)

    def most_images(self):
        """Largest number of images per device that fits with all else as it is; 0 if none does."""
        return largest(lambda number: self.changed(per_batch_size=number).fits, MOST_IMAGES)

    def least_devices(self):
        """Smallest number of devices like these that fits, with the same images per device; 0 if none does."""
        if self.hardware.kind == CPU:
            return 0
        misses = largest(lambda number: not self.changed(count=number).fits, MOST_DEVICES)
        return 0 if misses == MOST_DEVICES else misses + 1

    def _backbone(self):
        """One copy of the network; with several devices the kvstore holds weights and momentum once, spread over them,
        and buffers in which gradients are summed: one for each device."""
        memory, count, images = self.memory, self.hardware.count, self.cfg['per_batch_size']
        shared, exchange = 1, 0
        if count > 1:
            on_devices = self.cfg['kvstore'] == 'device' or self.hardware.kind == CPU
            shared = count if on_devices else math.inf
            exchange = memory.parameters + memory.parameters // count if on_devices else 0
        return [('backbone parameters', memory.parameters), ('backbone gradients', memory.parameters),
                ('backbone momentum', int(memory.float32 / shared)),
                ('float32 master weights', int(memory.masters / shared)),
                ('sums of gradients', exchange), ('running statistics', memory.auxiliary),
                ('activations', memory.fixed + memory.activations * images), ('images', self._image_bytes() * images)]

    def _image_bytes(self):
        height, width, channels = self.cfg['image_shape']
        return height * width * channels

    def _head(self):
        cfg, num_shards = self.cfg, self.hardware.count * self.hardware.processes
        rows = cfg['per_batch_size'] * num_shards
        start, stop = shard_range(cfg['num_classes'], 0, num_shards)
        return head_parts(stop - start, rows, cfg['emb_size'], self.keeps_logits, cfg['sample_ratio'],
                          cfg['head_block_size'], cfg['loss_name'] != 'softmax', cfg['sub_centers'],
                          bool(cfg['fp16']))

    def _runtime(self):
        if self.hardware.kind == CPU:
            return [('temporary memory of operators', self.memory.largest * self.cfg['per_batch_size'])]
        return [('workspace of convolutions', GPU_WORKSPACE), ('CUDA and its libraries', GPU_RUNTIME)]

    def _host(self):
        """Batches: those that are decoded ahead, the one that is used and the one that is handed over."""
        cfg, memory, count = self.cfg, self.memory, self.hardware.count
        stored = 0
        if count > 1 and self.hardware.kind != CPU:
            stored = memory.parameters
            if cfg['kvstore'] == 'local':
                stored += (count + 1) * memory.parameters + memory.float32 + memory.masters
        return [('copy of the backbone', memory.parameters + memory.auxiliary), ('kvstore', stored),
                ('batches in flight', (BATCHES_AHEAD + 2) * count * cfg['per_batch_size'] * self._image_bytes()),
                ('shuffle buffer', cfg['shuffle_chunk_size'] << 20 if cfg['is_shuffled_rec'] else 0),
                ('threads and libraries', CPU_RUNTIME)]


def head_parts(num_classes, num_rows, embedding_size, keeps_logits, ratio=1.0, block_size=None, is_cosine=True,
               sub_centers=1, is_half=False):
    """[(part, bytes)] of one shard of `num_classes` and N = num_rows: the arrays of block_step.py, class_block.py."""
    block_size = block_size or default_block_size(embedding_size * sub_centers)
    sampler = Sampler(ratio, 0)
    sizes = block_sizes(num_classes, block_size)
    taken = [(sampler.capacity(size, num_rows), count) for size, count in sizes.items()] or [(0, 0)]
    largest_block, all_taken = max(taken)[0], sum(size * count for size, count in taken)
    row, per_class = FLOAT * embedding_size, FLOAT * embedding_size * sub_centers
    similar = FLOAT * num_rows * largest_block
    kept = FLOAT * num_rows * all_taken if keeps_logits else similar
    several = sub_centers > 1              # then there is a second (N, K) array, and the number of each nearest center
    scratch = similar * (2 if several else 1) + largest_block * per_class + 2 * num_rows * row
    scales = SCALE_ARRAYS * FLOAT * all_taken * sub_centers if is_cosine else 0
    return [('class centers', num_classes * per_class), ('their momentum', num_classes * per_class),
            ('centers picked for a step', (all_taken + largest_block) * per_class if ratio < 1 else 0),
            ('half precision operands', int(HALF_ARRAYS * largest_block * (row + FLOAT * num_rows)) if is_half else 0),
            ('logits', kept), ('nearest centers', kept if several else 0), ('block buffers', scratch + scales),
            ('features and statistics', FEATURE_ARRAYS * num_rows * row + 3 * FLOAT * num_rows * sum(sizes.values()))]


def largest(holds, limit):
    """Largest whole number in [1, limit] for which `holds`, which then holds for all smaller ones; 0 if none."""
    low, high = 0, 1
    while high <= limit and holds(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > max(1, low >> 10):      # to a thousandth
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
