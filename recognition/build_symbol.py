"""A configuration -> the symbol of its network, to save and to train."""
import inspect

from common.errors import UsageError
from recognition.devices import has_half_products
from recognition.settings import SETTINGS

# settings of some families of networks; emb_size is one of all
OF_FAMILIES = ('num_layers', 'net_output', 'net_act', 'net_se', 'net_unit', 'net_input', 'net_blocks',
               'net_multiplier', 'bn_mom')


def build_symbol(cfg, get_backbone, **training):
    """The network's symbol with those settings of cfg that its family has.

    training: how the same network is computed while it is trained (precision, form of PReLU). UsageError if a setting
    that the family lacks is not at its default: it would have no effect.
    """
    builder = get_backbone(cfg['net_name'])
    known = inspect.signature(builder).parameters
    settings = {name: cfg[name] for name in OF_FAMILIES if name in cfg and name in known}
    idle = ['%s=%s' % (name, cfg[name]) for name in OF_FAMILIES
            if name in cfg and name not in known and cfg[name] != SETTINGS[name].default]
    if idle:
        raise UsageError('%s: the network family %s has no such setting; it has emb_size, %s' % (
            ', '.join(idle), cfg['net_name'], ', '.join(name for name in OF_FAMILIES if name in known)))
    return builder(embedding_size=cfg['emb_size'], **settings, **training)


def training_symbol(cfg, get_backbone, kind):
    """The symbol as it is trained on devices of that kind."""
    training = {'prelu': 'fast'}            # the plain operator's own slope gradient is wrong in symbols
    if cfg['fp16']:
        training.update(dtype='float16', half_products=has_half_products(kind))
    return build_symbol(cfg, get_backbone, **training)
