"""Which devices train: the text of --devices and of CUDA_VISIBLE_DEVICES -> MXNet contexts.

What can be said without MXNet is said first: the number of threads per CPU device has to be set before MXNet starts.
"""
import re
from collections import namedtuple

from common.cuda_libraries import HIGHEST, LOWEST, WHEEL, gpu_capabilities, has_wheel
from common.errors import UsageError, UserError

CPU, GPU = 'cpu', 'gpu'
MAX_CPU_DEVICES = 64

# kind: CPU, GPU, or None for GPUs if there are any. numbers: device numbers as MXNet counts, None for all GPUs.
# origin: the text that asked for them, for messages.
Request = namedtuple('Request', 'kind numbers origin')


def parse_devices(devices, cuda_visible):
    """--devices (text, '' if not given) and CUDA_VISIBLE_DEVICES (text, None if not set) -> Request.

    'cpu:2' asks for two CPU devices (two shards on one processor), 'gpu:0,1' for GPUs 0 and 1 as MXNet counts them,
    which is in the order of CUDA_VISIBLE_DEVICES; 'cpu' for one, 'gpu' for all. Without --devices
    CUDA_VISIBLE_DEVICES decides: not set: all GPUs or else one CPU; empty: one CPU; a list: that many GPUs.
    UsageError for anything else.
    """
    if devices:
        return parse_flag(devices)
    if cuda_visible is None:
        return Request(None, None, 'CUDA_VISIBLE_DEVICES, which is not set')
    origin = 'CUDA_VISIBLE_DEVICES=%s' % cuda_visible
    if cuda_visible.strip() in ('', '-1'):
        return Request(CPU, [0], origin)
    members = [member.strip() for member in cuda_visible.split(',')]
    if not all(re.fullmatch(r'\d+|(GPU|MIG)-[\w/-]+', member) for member in members):
        raise UsageError('%s: numbers such as 0,1 are expected, or nothing for the CPU' % origin)
    check_distinct(members, origin)
    return Request(GPU, list(range(len(members))), origin)


def parse_flag(devices):
    origin = '--devices %s' % devices
    match = re.fullmatch(r'(cpu|gpu)(?::\s*(\d+(?:\s*,\s*\d+)*))?', devices.strip())
    if not match:
        raise UsageError('%s: cpu, cpu:2 (a number of devices), gpu or gpu:0,1 (numbers of GPUs) is expected' % origin)
    kind, numbers = match.group(1), [int(number) for number in (match.group(2) or '').split(',') if number]
    if kind == GPU:
        check_distinct(numbers, origin)
        return Request(GPU, numbers or None, origin)
    if len(numbers) > 1 or not 1 <= (numbers or [1])[0] <= MAX_CPU_DEVICES:
        raise UsageError('%s: the number after cpu is how many CPU devices there are to be, 1 to %d'
                         % (origin, MAX_CPU_DEVICES))
    return Request(CPU, list(range(numbers[0] if numbers else 1)), origin)


def check_distinct(members, origin):
    if len(set(members)) < len(members):
        raise UsageError('%s names a device twice' % origin)


def num_cpu_devices(request):
    """CPU devices that share the processor's cores if the request ends on the CPU."""
    return len(request.numbers) if request.kind == CPU else 1


def resolve(request, num_gpus):
    """Request and the number of GPUs that MXNet sees -> [(kind, number), ...]. UserError if one is not there."""
    if request.kind == CPU or (request.kind is None and num_gpus == 0):
        return [(CPU, number) for number in request.numbers or [0]]
    wanted = list(range(num_gpus)) if request.numbers is None else request.numbers
    if not wanted or max(wanted) >= num_gpus:
        raise UserError('%s: MXNet sees %s; the CPU can stand in with --devices cpu:%d' % (
            request.origin, describe_gpus(num_gpus), max(1, len(wanted))))
    return [(GPU, number) for number in wanted]


def has_half_products(kind):
    """Whether MXNet multiplies matrices of float16 on such devices: on GPUs. CPUs store them and multiply float32."""
    return kind == GPU


def describe_gpus(num_gpus):
    if num_gpus == 0:
        return 'no GPU (the package mxnet is for CPUs only, mxnet-cu112 for GPUs too)'
    return 'GPU 0 only' if num_gpus == 1 else 'GPUs 0 to %d only' % (num_gpus - 1)


def own_devices(devices, request, local_rank, local_size):
    """Those of `devices`, of resolve, that belong to one of the processes of a host.

    GPUs that are not named by --devices gpu:NUMBERS are divided over the processes; CPU devices and GPUs named so
    are what each process takes. UserError if they cannot be divided.
    """
    named = request.origin.startswith('--devices') and request.numbers
    if local_size == 1 or named or devices[0][0] == CPU:
        return devices
    count, rest = divmod(len(devices), local_size)
    if rest or not count:
        raise UserError('%s: %s cannot be divided over the %d processes of this host: start %d of them, or name the '
                        'GPUs of each process' % (request.origin, describe_count(devices), local_size, len(devices)))
    return devices[local_rank * count:][:count]


def describe_count(devices):
    return '1 GPU' if len(devices) == 1 else '%d GPUs' % len(devices)


def count_gpus():
    """How many GPUs MXNet sees. UserError if it cannot tell. Imports MXNet."""
    from common.mxnet_loader import mx
    try:
        return mx.context.num_gpus()
    except mx.MXNetError as error:
        raise UserError('MXNet cannot look for GPUs (%s): check the driver, or use --devices cpu'
                        % str(error).strip().splitlines()[-1]) from None


def contexts(request, local_rank=0, local_size=1):
    """Request -> list of MXNet contexts, one per device of this process, which is one of local_size on this host.

    UserError if one is not there, or is a GPU that the installed MXNet has no code for. Imports MXNet.
    """
    from common.mxnet_loader import mx
    num_gpus = 0 if request.kind == CPU else count_gpus()
    devices = own_devices(resolve(request, num_gpus), request, local_rank, local_size)
    if has_wheel():
        refuse_gpus_without_code([number for kind, number in devices if kind == GPU])
    return [mx.Context(*device) for device in devices]


def refuse_gpus_without_code(numbers):
    """UserError if mxnet-cu112 has no code for one of these GPUs: there it would fail at its first operation."""
    capabilities = gpu_capabilities() if numbers else []
    for number in numbers:
        if number < len(capabilities) and not LOWEST <= capabilities[number] <= HIGHEST:
            raise UserError('GPU %d has compute capability %d.%d, and %s holds code for %d.%d to %d.%d: use an MXNet '
                            'that was built for it, such as that of the container nvcr.io/nvidia/mxnet, or other '
                            '--devices' % (number, *capabilities[number], WHEEL, *LOWEST, *HIGHEST))
