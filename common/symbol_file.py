"""MXNet's symbol files: who takes which output of whom is checked before MXNet, which believes it, gets them.

JSON: nodes [{op, name, inputs [[node, output, version]], ...}], arg_nodes [node], heads [[node, output, version]], and
what else MXNet wrote. A node takes only from nodes before it; the operator of inputs and parameters is `null`.
"""
import json

from common.errors import UserError
from common.mxnet_loader import mx

OUTPUTS = {'BatchNorm': 3, 'Dropout': 2}           # that others can take; one of any other operator
SPLIT = 'SliceChannel'                             # as many as it says


def load_symbol(path):
    """UserError if the file cannot be read, is no symbol or is damaged."""
    try:
        with open(path, encoding='utf-8') as stream:
            text = stream.read()
        check_symbol(json.loads(text))
        return mx.sym.load_json(text)
    except OSError as error:
        raise UserError('cannot read %s: %s' % (path, error.strerror)) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, mx.MXNetError) as error:
        reason = ' (%s)' % error if isinstance(error, Wrong) else ''
        raise UserError('%s is no MXNet symbol or is damaged%s' % (path, reason)) from None


class Wrong(ValueError):
    """A reference that leads nowhere; the text says which."""


def check_symbol(content):
    """Wrong, or another error of Python, unless every reference leads to an output that is there."""
    nodes = content['nodes']
    for place, node in enumerate(nodes):
        if node.get('control_deps') or node.get('subgraphs'):
            raise Wrong('node %d has parts that are not known' % place)
        _check_entries(nodes, place, node['inputs'], 'node %d' % place)
    _check_entries(nodes, len(nodes), content['heads'], 'heads')
    _check_entries(nodes, len(nodes), [[place, 0] for place in content['arg_nodes']], 'arg_nodes')


def _check_entries(nodes, end, entries, name):
    for place, number, *_ in entries:
        if type(place) is not int or not 0 <= place < end:
            raise Wrong('%s: %.20r is no node before it' % (name, place))
        if type(number) is not int or not 0 <= number < _num_outputs(nodes[place]):
            raise Wrong('%s: node %d has no output %.20r' % (name, place, number))


def _num_outputs(node):
    if node['op'] == SPLIT:
        attributes = node.get('attrs') or node.get('attr') or node.get('param')
        return int(attributes['num_outputs'])
    return OUTPUTS.get(node['op'], 1)
