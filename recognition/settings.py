"""Every setting of a training: default, values it may take, unit and meaning. The only such list.

config.py and the command line both end here: `complete` takes what they give, adds the default of whatever is
missing and checks each value once. After that a configuration is read, never written.
"""
import copy
import difflib
import logging
from collections import namedtuple

from easydict import EasyDict

from common.errors import UsageError
from recognition.kinds import (
    names,
    one_of,
    or_none,
    or_texts,
    or_word,
    real,
    steps_or_minutes,
    switch,
    text,
    whole,
    wholes,
)

log = logging.getLogger('shardface')

Setting = namedtuple('Setting', 'default kind help')

preset_name = text(r'[\w.-]+', 'the name of a preset')

SETTINGS = {
    # what is trained on what
    'network': Setting('r100', preset_name, 'preset of the network'),
    'dataset': Setting('emore', preset_name, 'preset of the data set'),
    'loss': Setting('arcface', preset_name, 'preset of the loss'),
    'dataset_path': Setting('', or_texts(text(expects='a folder')),
                            'folder with train.rec, train.idx and property, or several: A,B; a relative path starts '
                            'at the working directory'),
    'num_classes': Setting(None, or_none(whole(1)),
                           'identities of the set; None: what its property file says'),
    'image_shape': Setting(None, or_none(wholes(1, '112,112,3', count=3)),
                           'height, width, 3 in pixels; None: what property says'),
    'val_targets': Setting(['lfw', 'cfp_fp', 'agedb_30'], names(),
                           'verification sets: NAME.bin in dataset_path; those that are not there are left '
                           'out'),
    # network
    'net_name': Setting('fresnet', text(r'\w+', 'the name of a network family'),
                        'family of networks in symbols/: fresnet, fmobilefacenet, fmobilenet, iresnet or '
                        'vargfacenet'),
    'num_layers': Setting(50, whole(1), 'layers of fresnet and iresnet'),
    'emb_size': Setting(512, whole(1), 'numbers per embedding'),
    'net_output': Setting('E', text(r'\w+', 'an output type such as E'), 'last layers: E, FC, GDC, GAP, J or Z'),
    'net_act': Setting('prelu', text(r'\w+', 'an activation such as prelu'), 'activation'),
    'net_se': Setting(0, whole(0, 1), '1: squeeze and excitation in the units of fresnet and vargfacenet'),
    'net_unit': Setting(3, whole(1), 'kind of residual unit of fresnet'),
    'net_input': Setting(1, whole(0, 2), 'kind of first layers of fresnet and fmobilenet'),
    'net_blocks': Setting([1, 4, 6, 2], wholes(0, '1,4,6,2', count=4), 'units per stage of fmobilefacenet'),
    'net_multiplier': Setting(1.0, real(above=0), 'factor on the widths of fmobilefacenet, fmobilenet and '
                                                   'vargfacenet'),
    'bn_mom': Setting(0.9, real(low=0, below=1),
                      'share of the old running statistics kept by batch norm per step'),
    # loss: target logit = loss_s * (cos(loss_m1 * theta + loss_m2) - loss_m3), see docs/losses.md
    'loss_name': Setting('margin_softmax', one_of('margin_softmax', 'softmax', 'adaface'),
                         'softmax: plain inner product, no margin; adaface: margins by the length of the embedding'),
    'loss_s': Setting(64.0, real(above=0), 'scale of the cosine'),
    'loss_m1': Setting(1.0, real(low=1), 'margin: factor on the angle'),
    'loss_m2': Setting(0.0, real(low=0), 'margin: added to the angle, radians'),
    'loss_m3': Setting(0.0, real(low=0), 'margin: subtracted from the cosine'),
    'loss_m2_std': Setting(0.0, real(low=0), 'deviation of loss_m2 from image to image, radians; 0: the same for all'),
    'loss_m3_std': Setting(0.0, real(low=0), 'deviation of loss_m3 from image to image; 0: the same for all'),
    'loss_ada_m': Setting(0.4, real(low=0), 'adaface: margin, radians and cosine'),
    'loss_ada_h': Setting(0.333, real(above=0), 'adaface: how fast the margin changes with the length, per deviation'),
    'loss_ada_mom': Setting(0.99, real(low=0, below=1),
                            'adaface: share of the old mean and deviation of lengths kept per batch'),
    'label_smoothing': Setting(0.0, real(low=0, below=1),
                               'share of the target that is spread over all classes; 0: none. Not with partial FC'),
    'fc7_lr_mult': Setting(1.0, real(low=0), 'factor on lr for the class centers'),
    'fc7_wd_mult': Setting(1.0, real(low=0), 'factor on wd for the class centers'),
    'fc7_no_bias': Setting(False, switch(), 'no bias in the classification layer of loss softmax'),
    # classification layer
    'sample_ratio': Setting(1.0, real(above=0, high=1), 'share of class centers used per step (partial FC)'),
    'sub_centers': Setting(1, whole(1, 100), 'centers per class, of which the nearest counts (sub-center loss)'),
    'interclass_filter': Setting(0.0, real(low=0, below=1),
                                 'cosine above which a negative is taken for a mislabelled positive and left out; '
                                 '0: none is'),
    'head_memory': Setting('auto', one_of('auto', 'fast', 'lean'),
                           'fast: keep the logits of a step; lean: compute them twice; auto: fast if it fits'),
    'head_block_size': Setting(None, or_none(whole(1)), 'classes per block; None: by emb_size'),
    'fp16': Setting(False, switch(), 'half precision; True is fp16_scale 1.0'),
    'fp16_scale': Setting(0.0, or_word('dynamic', real(low=0)),
                          'loss scale of half precision: a number, or dynamic, which finds it; 0: off'),
    'fp16_exchange': Setting(False, switch(), 'processes send each other their embeddings in float16: half the bytes'),
    # fine-tuning, see docs/finetune.md
    'pretrained': Setting('', text(), 'PREFIX or PREFIX,EPOCH of a checkpoint, or folder of a training state, whose '
                                      'backbone is the start'),
    'pretrained_epoch': Setting(1, whole(0, 9999), 'EPOCH where pretrained has none, as in PREFIX-0001.params'),
    'pretrained_head': Setting('', text(), 'folder PREFIX-NNNN.head, PREFIX,EPOCH, or folder of a training state, '
                                           'whose class centers are the start'),
    'class_map': Setting('', text(), 'file with a line OLD NEW for each class of pretrained_head that is kept; empty: '
                                     'the classes are the same'),
    'new_centers': Setting('random', one_of('random', 'mean'),
                           'where classes that pretrained_head does not have start: random, or the mean embedding of '
                           'their images'),
    'freeze_backbone': Setting(0, whole(0), 'first steps that train the class centers alone; the backbone, with its '
                                            'batch norm statistics, stays as it is'),
    # reading
    'is_shuffled_rec': Setting(False, switch(),
                               'the set was shuffled by rec2shufrec and is read front to back'),
    'record_reader': Setting('threaded', one_of('threaded', 'native'), 'reader of a shuffled set'),
    'shuffle_chunk_size': Setting(256, whole(1), 'memory in which a shuffled set is shuffled again, MB'),
    'data_threads': Setting(None, or_none(whole(1)), 'threads that decode images; None: one per core'),
    'data_rand_mirror': Setting(True, switch(), 'mirror half of the images'),
    'data_cutoff': Setting(0, whole(0), 'side of a square blanked in half of the images, pixels; 0: none'),
    'data_color': Setting(0, whole(0, 2), '1: change brightness, contrast, saturation; 2: also JPEG quality'),
    'data_images_filter': Setting(0, whole(0), 'leave out identities with fewer images'),
    # optimizer
    'per_batch_size': Setting(128, whole(1), 'images per device and step'),
    'lr': Setting(0.1, real(above=0), 'learning rate'),
    'lr_steps': Setting([100000, 160000, 220000], wholes(1, '100000,160000', ascending=True),
                        'steps after which lr is divided by 10'),
    'lr_policy': Setting('steps', one_of('steps', 'poly', 'cosine'),
                         'how lr falls: steps, at lr_steps; poly or cosine, smoothly over lr_total steps'),
    'lr_total': Setting(None, or_none(whole(1)),
                        'steps over which poly and cosine fall, warm-up included; None: those of the whole run'),
    'lr_power': Setting(2.0, real(above=0), 'exponent of poly'),
    'warmup': Setting(0, whole(0), 'steps over which lr rises from 0: step n has n / warmup of it; 0: none'),
    'wd': Setting(0.0005, real(low=0), 'weight decay'),
    'mom': Setting(0.9, real(low=0, below=1), 'momentum'),
    'accumulate': Setting(1, whole(1), 'batches per step, trained on as one batch of all their images'),
    'clip_norm': Setting(0.0, real(low=0), "length to which the backbone's gradient is cut if it is longer; 0: never"),
    'kvstore': Setting('device', one_of('device', 'local'),
                       'where gradients of several devices are summed: device or local (host)'),
    # run
    'devices': Setting('', text(),
                       'cpu, cpu:2 (two CPU shards), gpu (all), gpu:0,1; empty: the GPUs of '
                       'CUDA_VISIBLE_DEVICES, else cpu'),
    'device_memory': Setting(None, or_none(real(above=0)),
                             'memory of each device for the plan, GB (2**30 bytes); None: what is free there'),
    'plan_check': Setting(True, switch(), 'refuse a run that cannot fit in memory by the plan'),
    'report': Setting(True, switch(), 'write report.html at the end, if matplotlib is there'),
    'tensorboard': Setting(False, switch(), 'write events for TensorBoard (needs tensorboardX)'),
    'seed': Setting(0, whole(0, 2**31 - 1), 'seed of weights, order and augmentation'),
    'max_steps': Setting(0, whole(0), 'stop after so many steps; 0: no such stop'),
    'end_epoch': Setting(10000, whole(0), 'stop after so many epochs; 0: no such stop'),
    'max_minutes': Setting(0.0, real(low=0),
                           'save and stop before so many minutes have passed since the start; 0: no such stop'),
    'frequent': Setting(20, whole(1), 'steps between log lines'),
    'verbose': Setting(2000, whole(1), 'steps between verifications'),
    'ckpt': Setting(3, whole(0, 3),
                    'checkpoints: 0 none, 1 the best, 2 at every verification, 3 overwrite last and best'),
    'ckpt_every': Setting(None, or_none(steps_or_minutes()),
                          'steps, or minutes such as 30m, between training states to resume from; 0: none; None: '
                          '30m, or none with ckpt 0'),
    'keep': Setting(2, whole(1), 'training states that are kept, the newest'),
    'resume': Setting('', text(),
                      'auto: go on from the newest intact training state, if there is one; or the folder of a state'),
    'models_root': Setting('./models', text('.+', 'a folder'),
                           'folder for results; a relative path starts at the working directory'),
    'extra_model_name': Setting('', text(r'[\w.-]*', 'letters, digits, "_", "." and "-"'),
                                'added to the folder name of the results'),
}

# Settings of insightface's config.py that need no attention: there is nothing to choose, or nothing lost.
NEEDLESS = {'workspace', 'ckpt_embedding', 'count_flops', 'memonger', 'ce_loss', 'num_workers'}


def defaults():
    """A new EasyDict with the default of every setting."""
    return EasyDict({name: copy.deepcopy(setting.default) for name, setting in SETTINGS.items()})


def compose(*layers):
    """One flat EasyDict of all layers, the later ones winning. The layers stay as they are."""
    flat = {}
    for layer in layers:
        flat.update(copy.deepcopy(dict(layer)))
    return EasyDict(flat)


def preset(kind, table, name):
    """table[name]. UsageError names the presets there are; kind: 'network', 'dataset' or 'loss'."""
    if name not in table:
        raise UsageError('unknown %s %s%s; known: %s' % (kind, name, suggestion(name, table), ', '.join(table)))
    return table[name]


def suggestion(name, known):
    """' (did you mean X?)' with the nearest known name, or nothing."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return ' (did you mean %s?)' % near[0] if near else ''


def checked(name, value, origin=None):
    """The value in the form used later. UsageError names setting (or origin, a flag) and value."""
    if name not in SETTINGS:
        raise UsageError('unknown setting %s%s' % (name, suggestion(name, SETTINGS)))
    try:
        return SETTINGS[name].kind(value)
    except ValueError as error:
        raise UsageError('%s = %r: %s' % (origin or name, value, error)) from None


def complete(given):
    """given, a flat dict -> EasyDict of exactly all settings, each checked.

    What given lacks (a config.py older than a setting) gets its default and is named in the log. What is not
    known is left out with a warning. UsageError for a wrong type or range.
    """
    report_unknown(set(given) - set(SETTINGS))
    missing = [name for name in SETTINGS if name not in given]
    if missing:
        log.info('not in config.py, so at their defaults: %s',
                 ', '.join('%s=%r' % (name, SETTINGS[name].default) for name in missing))
    flat = {name: checked(name, given.get(name, setting.default)) for name, setting in SETTINGS.items()}
    if flat['fp16'] and not flat['fp16_scale']:
        flat['fp16_scale'] = 1.0
    flat['fp16'] = bool(flat['fp16_scale'])
    if flat['loss_name'] == 'adaface':
        refuse_margins(flat)
    if flat['label_smoothing']:
        refuse_absent_classes(flat)
    if flat['class_map'] and not flat['pretrained_head']:
        raise UsageError('class_map = %s needs pretrained_head, whose classes it maps' % flat['class_map'])
    if flat['new_centers'] == 'mean' and not flat['pretrained']:
        raise UsageError('new_centers = mean needs pretrained: an untrained network has no embeddings worth a mean')
    if flat['image_shape'] and flat['image_shape'][2] != 3:
        raise UsageError('image_shape = %s: the last number must be 3 (colours)' % flat['image_shape'])
    return EasyDict(flat)


def refuse_margins(flat):
    """UsageError if margins are set that loss adaface does not look at."""
    for name in 'loss_m1', 'loss_m2', 'loss_m3', 'loss_m2_std', 'loss_m3_std':
        if flat[name] != SETTINGS[name].default:
            raise UsageError('%s = %s has no effect with loss_name = adaface, whose margin is loss_ada_m; leave it out'
                             % (name, flat[name]))


def refuse_absent_classes(flat):
    """UsageError if steps leave out classes, over which label smoothing would spread its target."""
    for name in 'sample_ratio', 'interclass_filter':
        if flat[name] != SETTINGS[name].default:
            raise UsageError('label_smoothing needs the logits of all classes, which %s = %s leaves out: set one of '
                             'them to %s' % (name, flat[name], SETTINGS[name].default))


def report_unknown(unknown):
    """Warn of settings that have no effect."""
    needless = sorted(unknown & NEEDLESS)
    if needless:
        log.info('in config.py, but not needed here: %s', ', '.join(needless))
    for name in sorted(unknown - NEEDLESS):
        log.warning('config.py: unknown setting %s has no effect%s', name, suggestion(name, SETTINGS))


def changed(cfg):
    """'name=value ...' of the settings that are not at their default."""
    return ' '.join('%s=%s' % (name, cfg[name]) for name, setting in SETTINGS.items() if cfg[name] != setting.default)
