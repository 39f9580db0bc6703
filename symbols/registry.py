"""Name -> builder. A family registers itself where it is defined; the list of families stands here."""
import difflib
import importlib

from common.errors import UsageError

FAMILIES = ('fresnet', 'fmobilefacenet', 'fmobilenet', 'iresnet', 'vargfacenet')      # modules of this package
_BUILDERS = {}


def register_backbone(name):
    """Decorator: make a builder known under a name. ValueError if the name is taken."""
    def register(builder):
        if name in _BUILDERS:
            raise ValueError('two networks are named %s' % name)
        _BUILDERS[name] = builder
        return builder
    return register


def list_backbones():
    """Sorted names of all families."""
    for family in FAMILIES:
        importlib.import_module('symbols.' + family)
    return sorted(_BUILDERS)


def get_backbone(name):
    """The builder of that name. UsageError lists the known names."""
    known = list_backbones()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError('unknown network family net_name=%s%s; known: %s' % (
            name, ' (did you mean %s?)' % near[0] if near else '', ', '.join(known)))
    return _BUILDERS[name]
