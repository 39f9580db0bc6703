"""Going on with a training: is it the same one, what is different now, and where it stands."""
import json
import logging

from common.errors import UserError
from common.label_table import folders
from recognition.training_state import restore_state

log = logging.getLogger('shardface')

# What makes another training of it: with these changed, the saved numbers would have no meaning.
NETWORK = ('emb_size', 'net_name', 'num_layers', 'net_output', 'net_act', 'net_se', 'net_unit', 'net_input',
           'net_blocks', 'net_multiplier', 'image_shape')
LOSS = ('loss_name', 'loss_s', 'loss_m1', 'loss_m2', 'loss_m3', 'loss_m2_std', 'loss_m3_std', 'loss_ada_m',
        'loss_ada_h', 'loss_ada_mom', 'fc7_no_bias', 'sub_centers')
FIXED = ('num_classes',) + NETWORK + LOSS
SCHEDULE = 'lr', 'lr_steps', 'warmup', 'lr_policy', 'lr_total', 'lr_power'
NOT_COMPARED = {'resume', 'pretrained', 'pretrained_epoch', 'pretrained_head', 'class_map', 'new_centers'}


def differences(saved, cfg):
    """{setting: (saved value, value now)} of what both configurations have."""
    now = json.loads(json.dumps(cfg))
    return {name: (saved[name], now[name]) for name in now
            if name in saved and saved[name] != now[name] and name not in NOT_COMPARED}


def check_same_training(found, cfg):
    """UserError with both values if a state, of StateFolder.find, is of another network, loss or number of classes."""
    path, manifest = found
    if not isinstance(manifest.get('config'), dict):
        raise UserError('cannot resume %s: its manifest lacks the settings' % path)
    different = differences(manifest['config'], cfg)
    check_order_of_sets(path, different)
    wrong = [name for name in FIXED if name in different]
    if wrong:
        raise UserError('cannot resume %s: %s; give the same values, or leave out --resume and choose another '
                        '--extra-model-name' % (path, ', '.join('%s is %s there and %s now' % (
                            name, *different[name]) for name in wrong)))


def check_order_of_sets(path, different):
    """UserError if the same sets come in another order: their labels would mean other classes."""
    before, now = map(folders, different.get('dataset_path', ([], [])))
    if before != now and sorted(before) == sorted(now):
        raise UserError('cannot resume %s: dataset_path was %s there and is %s now, and the order decides which labels '
                        'belong to which set; give the same order' % (path, ','.join(before), ','.join(now)))


def resume(trainer, found, cfg):
    """Bring a Trainer to a state that was found, and say what is different now."""
    path, manifest = found
    restore_state(path, manifest, trainer)
    step = trainer.module.num_update
    log.info('resumed from %s: after step %d, epoch %d, batch %d of %d', path, step, trainer.train_iter.epoch,
             trainer.train_iter.state()['batch'], trainer.train_iter.batches_per_epoch)
    different = differences(manifest['config'], cfg)
    if any(name in different for name in SCHEDULE):
        log.warning('the learning rate schedule changed: %s; step %d has lr %.3g', listed(different, SCHEDULE),
                    step + 1, trainer.module.solver.schedule(step + 1))
    others = [name for name in different if name not in SCHEDULE]
    if others:
        log.info('settings changed since it was saved: %s', listed(different, others))


def listed(different, names):
    """'name old -> new, ...'"""
    return ', '.join('%s %s -> %s' % (name, *different[name]) for name in names if name in different)
