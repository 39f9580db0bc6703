"""A memory plan in words: the table, what fits, and what would."""
from recognition.devices import CPU
from recognition.plan import GB

RATIO = 0.1              # sample ratio that is tried in the advice


def report(plan):
    """Lines of the whole plan."""
    cfg, hardware = plan.cfg, plan.hardware
    processes = 'one process' if hardware.processes == 1 else '%d processes, each' % hardware.processes
    return ['memory plan: %s, %d classes, embedding of %d numbers, %s of %d devices (%s), %d images each, %s, '
            '--head-memory %s, sample_ratio %s; GB = 2**30 bytes'
            % (cfg['network'], cfg['num_classes'], cfg['emb_size'],
               processes, hardware.count, hardware.kind,
               cfg['per_batch_size'], 'half precision' if cfg['fp16'] else 'float32', plan.head_memory,
               cfg['sample_ratio'])] + table(plan) + limits(plan)


def table(plan):
    """Lines with the parts of a device and of the process."""
    lines = []
    for title, parts in (('each device', plan.device), ('process', plan.host)):
        lines.append('  %s:' % title)
        lines += ['    %-32s %10.3f' % (name, size / GB) for name, size in parts.items() if size]
        lines.append('    %-32s %10.3f' % ('sum', sum(parts.values()) / GB))
    return lines


def verdict(plan):
    """'17.3 of 24.0 GB per device: fits'"""
    what = 'devices and process together' if plan.hardware.kind == CPU else 'per device'
    if plan.capacity is None:
        return '%.2f GB needed, %s; how much is there is not known' % (plan.need / GB, what)
    outcome = ('fits, but barely' if plan.is_tight else 'fits') if plan.fits else 'does not fit'
    host = ''
    if plan.hardware.kind != CPU and plan.hardware.host is not None:
        host = ', %.2f of %.2f GB of the host' % (sum(plan.host.values()) / GB, plan.hardware.host / GB)
    return '%.2f of %.2f GB, %s%s: %s' % (plan.need / GB, plan.capacity / GB, what, host, outcome)


def limits(plan):
    """Lines: the verdict, the largest numbers that fit, and advice where it is called for."""
    lines = ['  ' + verdict(plan)]
    if plan.capacity is None:
        return lines
    lines.append('  largest number of classes at %d images per device: %s'
                 % (plan.cfg['per_batch_size'], plan.most_classes() or 'none fits'))
    lines.append('  most images per device at %d classes: %s'
                 % (plan.cfg['num_classes'], plan.most_images() or 'none fits'))
    if not plan.fits or plan.is_tight:
        lines.append('  ' + advice(plan))
    return lines


def advice(plan):
    """One line: changes that would make it fit, each with what is then needed; or that nothing here does."""
    found = ['%s (%.2f GB)' % (flags, other.need / GB) for flags, other in alternatives(plan)
             if other.fits and other.need < plan.need]
    if not found:
        return 'none of lean logits, sampling, half precision, a smaller batch or more devices makes it fit'
    return 'what would need less: ' + '; '.join(found)


def alternatives(plan):
    """Yield (flags, changed plan): one change each; half precision also with lean logits or the batch it allows."""
    lean = plan.changed(head_memory='lean')
    if plan.keeps_logits:
        yield '--head-memory lean', lean
    if plan.cfg['sample_ratio'] > RATIO:
        yield '--sample-ratio %s' % RATIO, plan.changed(sample_ratio=RATIO)
    yield from fewer_images('', plan)
    if not plan.cfg['fp16'] and True in plan.memories:
        half = dict(fp16=True, fp16_scale='dynamic')
        yield '--fp16-scale dynamic', plan.changed(**half)
        yield from fewer_images('--fp16-scale dynamic ', plan.changed(**half))
        if plan.keeps_logits:
            yield '--fp16-scale dynamic --head-memory lean', lean.changed(**half)
        yield from more_devices('--fp16-scale dynamic ', plan.changed(**half))
    yield from more_devices('', plan)


def more_devices(flags, plan):
    """The same on the fewest devices that fit, if these have to be more."""
    devices = plan.least_devices()
    if devices > plan.hardware.count:
        yield '%son %d devices' % (flags, devices), plan.changed(count=devices)


def fewer_images(flags, plan):
    """The same with the largest batch that fits, if it has to be smaller."""
    images = plan.most_images()
    if 0 < images < plan.cfg['per_batch_size']:
        yield '%s--per-batch-size %d' % (flags, images), plan.changed(per_batch_size=images)
