"""Before anything is allocated: the memory plan in the log, a refusal where it does not fit, fast or lean."""
import logging

from common.errors import UsageError, UserError
from common.memory import available_memory
from common.mxnet_loader import mx
from recognition.backbone_memory import HALF_ON_CPU, measure_backbone
from recognition.build_symbol import training_symbol
from recognition.devices import CPU, GPU, count_gpus, own_devices
from recognition.plan import GB, Hardware, Plan
from recognition.plan_text import advice, report, verdict

log = logging.getLogger('shardface')


def settle_memory(cfg, get_backbone, contexts, place):
    """Log the plan of a training on these contexts and set cfg.head_memory to fast or lean where it is auto; returns
    the lines of the plan.

    place: world_size and local_size, of a collective. UserError with advice if it does not fit and cfg.plan_check is
    on.
    """
    plan = make_plan(cfg, get_backbone, [(context.device_type, context.device_id) for context in contexts], place)
    lines = report(plan)
    for line in lines:
        log.info('%s', line)
    if not plan.fits and cfg.plan_check:
        raise UserError('memory: %s; %s; --no-plan-check tries all the same' % (verdict(plan), advice(plan)))
    log.info('--head-memory %s%s', plan.head_memory, ', chosen by the plan' if cfg.head_memory == 'auto' else '')
    cfg.head_memory = plan.head_memory
    return lines


def make_plan(cfg, get_backbone, devices, place):
    """Plan of cfg on devices, (kind, number) pairs that need not be there if cfg.device_memory is given."""
    kind, (height, width, channels) = devices[0][0], cfg.image_shape
    memories = {half: measure_backbone(training_symbol(dict(cfg, fp16=half), get_backbone, kind),
                                       (channels, height, width), HALF_ON_CPU if half and kind == CPU else 1.0)
                for half in precisions(cfg, kind)}
    return Plan(cfg, memories, hardware_of(devices, cfg.device_memory, place))


def precisions(cfg, kind):
    """Which kinds of half precision are worth planning: CPUs save nothing by it."""
    return {bool(cfg.fp16), True} if kind == GPU else {bool(cfg.fp16)}


def hardware_of(devices, device_memory, place):
    """device_memory: GB per device, or None to ask the devices. With it, the machine's own memory does not count.

    The processes of a machine share its memory evenly.
    """
    kind, count = devices[0][0], len(devices)
    if device_memory is not None:
        capacity = int(device_memory * GB)
        return Hardware(kind, count, capacity, capacity * count if kind == CPU else None, place.world_size)
    available = available_memory()
    host = None if available is None else available // place.local_size
    capacity = None if kind == CPU else min(free_gpu_memory(number) for _, number in devices)
    return Hardware(kind, count, capacity, host, place.world_size)


def free_gpu_memory(number):
    """Bytes that are free on a GPU now."""
    try:
        return mx.context.gpu_memory_info(number)[0]
    except (mx.MXNetError, AttributeError):
        raise UserError('the memory of GPU %d is not known: give it with --set device_memory=GB' % number) from None


def planned_devices(request, place):
    """Request -> (kind, number) pairs for a plan: what is asked for, there or not. UsageError for 'all GPUs'."""
    if request.numbers is not None:
        return own_devices([(request.kind, number) for number in request.numbers], request, place.local_rank,
                           place.local_size)
    num_gpus = count_gpus()
    if num_gpus == 0 and request.kind == GPU:
        raise UsageError('%s: for a plan without GPUs say how many, such as --devices gpu:0,1' % request.origin)
    return own_devices([(GPU, number) for number in range(num_gpus)] or [(CPU, 0)], request, place.local_rank,
                       place.local_size)
