"""Starting the backbone from what was trained before: what fits by name and shape is taken, the rest is listed.

It comes from PREFIX-NNNN.params, as this program, insightface and plain MXNet write it, with PREFIX-symbol.json if
that is there; or from a training state. Nothing of a file is executed.
"""
import json
import logging
import os
import pathlib

import numpy as np

from common.array_files import open_arrays
from common.errors import UserError
from common.mxnet_loader import mx
from common.parameter_file import load_parameters
from common.saved_model import split_epoch
from recognition.checkpoint import params_path
from recognition.state_files import MANIFEST, check_file, read_manifest
from recognition.training_state import BACKBONE

log = logging.getLogger('shardface')

NAMED = 6                            # parameters in a list of the log


def take_pretrained(backbone, pretrained, number):
    """Set the parameters of a Backbone before its optimizer begins; the log says what was taken and what was not.

    pretrained: PREFIX, PREFIX,EPOCH or the folder of a training state; number: EPOCH if it is not given there.
    UserError if it is missing or damaged, or if nothing of it fits.
    """
    path, saved = load_pretrained(pretrained, number)
    own, taken, other = backbone.parameters(), [], []
    for own_part, saved_part in zip(own, saved):
        for name, array in own_part.items():
            found = saved_part.get(name)
            if found is None:
                other.append(name)
            elif found.shape != array.shape:
                other.append('%s: %s in the file, %s here' % (name, found.shape, array.shape))
            else:
                own_part[name] = checked(found, name, path).astype(array.dtype)
                taken.append(name)
    skipped = [name for own_part, saved_part in zip(own, saved) for name in saved_part if name not in own_part]
    if not taken:
        raise UserError('%s fits no parameter of this network%s: it is of another --network'
                        % (path, named_list(other)))
    backbone.set_parameters(*own)
    log.log(logging.INFO if len(taken) > len(other) else logging.WARNING,
            'pretrained backbone %s: %d parameters taken%s; %d re-initialised%s; %d of the file skipped%s', path,
            len(taken), named_list(taken), len(other), named_list(other), len(skipped), named_list(skipped))


def load_pretrained(pretrained, number):
    """(path, (arg_params, aux_params)), as for take_pretrained."""
    prefix, number = with_epoch(pretrained, number)
    prefix = os.path.abspath(os.path.expanduser(prefix))
    if os.path.isdir(prefix):
        return prefix, load_state_backbone(pathlib.Path(prefix))
    path = params_path(prefix, number)
    arguments, auxiliary = load_backbone(prefix, number)
    for name in fixed_gammas('%s-symbol.json' % prefix):
        if name in arguments:
            arguments[name][:] = 1
    return path, (arguments, auxiliary)


def with_epoch(pretrained, number):
    """'PREFIX,EPOCH' -> (PREFIX, EPOCH); 'PREFIX' -> (PREFIX, number)."""
    prefix, found = split_epoch(pretrained)
    return prefix, number if found is None else found


def load_backbone(prefix, number):
    """Read PREFIX-NNNN.params -> (arg_params, aux_params). UserError if missing or damaged."""
    path = params_path(prefix, number).absolute()
    if not path.is_file():
        raise UserError('no checkpoint at %s: check --pretrained PREFIX,EPOCH and --pretrained-epoch' % path)
    named = [(*name.partition(':')[::2], array) for name, array in load_parameters(path).items()]
    parts = {'arg': {}, 'aux': {}}
    for kind, name, array in named:
        if kind not in parts:
            raise UserError('%s holds no backbone: names start with arg: or aux:' % path)
        parts[kind][name] = array
    return parts['arg'], parts['aux']


def load_state_backbone(folder):
    """(arg_params, aux_params) of a training state, whose devices' running statistics are averaged. UserError."""
    if not (folder / MANIFEST).is_file():
        raise UserError('--pretrained %s: no training state in this folder; give PREFIX, PREFIX,EPOCH or a folder '
                        'step-00000000' % folder)
    listed = read_manifest(folder)['files']
    if BACKBONE not in listed:
        raise UserError('--pretrained %s: no %s in this training state' % (folder, BACKBONE))
    check_file(folder / BACKBONE, listed[BACKBONE])
    arguments, copies = {}, {}
    with open_arrays(folder / BACKBONE) as arrays:
        for key in arrays:
            kind, name = key.split('/', 1)
            if kind == 'weight':
                arguments[name] = mx.nd.array(arrays[key])
            elif kind == 'statistics':
                copies.setdefault(name.split('/', 1)[1], []).append(arrays[key])
    return arguments, {name: mx.nd.array(np.mean(values, axis=0)) for name, values in copies.items()}


def fixed_gammas(path):
    """Names of the gammas of a symbol file that batch norm takes as 1, whatever is saved; none if there is no file.

    Networks that train these need to know. UserError for a damaged file.
    """
    if not os.path.isfile(path):
        return []
    try:
        with open(path, encoding='utf-8') as stream:
            nodes = json.load(stream)['nodes']
        return [nodes[node['inputs'][1][0]]['name'] for node in nodes if node['op'] == 'BatchNorm' and is_fixed(node)]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OSError):
        raise UserError('%s is no MXNet symbol or is damaged: repair or remove it' % path) from None


def is_fixed(node):
    """Whether a batch norm node has fix_gamma, which is its default. Older files have other keys."""
    attributes = node.get('attrs') or node.get('attr') or node.get('param') or {}
    return attributes.get('fix_gamma', 'True') in ('True', '1')


def checked(array, name, path):
    """The array. UserError unless its numbers are finite."""
    if not np.isfinite(array.asnumpy()).all():
        raise UserError('%s: %s is not finite; the file is damaged, or of a training that failed' % (path, name))
    return array


def named_list(names):
    """' (a, b, ...)' or nothing."""
    return ' (%s%s)' % (', '.join(names[:NAMED]), ', ...' if len(names) > NAMED else '') if names else ''
