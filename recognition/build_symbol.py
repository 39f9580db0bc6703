"""A configuration -> the symbol of its network, to save and to train."""
import inspect

from recognition.devices import has_half_products


def build_symbol(cfg, get_backbone, **training):
    """The network's symbol with those settings of cfg that its family has.

    training: how the same network is computed while it is trained (precision, form of PReLU).
    """
    builder = get_backbone(cfg['net_name'])
    known = inspect.signature(builder).parameters
    settings = {name: value for name, value in cfg.items() if name in known}
    return builder(embedding_size=cfg['emb_size'], **settings, **training)


def training_symbol(cfg, get_backbone, kind):
    """The symbol as it is trained on devices of that kind."""
    training = {'prelu': 'fast'}            # the plain operator's own slope gradient is wrong in symbols
    if cfg['fp16']:
        training.update(dtype='float16', half_products=has_half_products(kind))
    return build_symbol(cfg, get_backbone, **training)
