"""Batch norm into the product beside it: y = (x - mean) gamma / sqrt(variance + eps) + beta is one factor and one
summand per channel, which the weight and the bias of a convolution or fully connected layer can take over.
"""
import numpy as np

from common.symbol_graph import VARIABLE, Node

PRODUCTS = ('Convolution', 'FullyConnected')


def fold_batch_norms(graph, parameters, statistics):
    """Fold every batch norm that can be, of a Graph, into new `parameters`; returns (folded, left).

    Exact are: behind a product that nothing else uses, and before a fully connected layer, where nothing else uses
    the batch norm. Before a padded convolution it is not, as the padding would have to be -beta / factor.
    parameters, statistics: {name: array}, the former are changed.
    """
    norms = [node for node in graph.nodes if node.op == 'BatchNorm']
    folded = sum(_fold(graph, node, parameters, statistics) for node in norms)
    graph.prune()
    return folded, len(norms) - folded


def _fold(graph, node, parameters, statistics):
    """Fold one; whether it could be."""
    users, before = graph.users(), node.inputs[0][0]
    scale, shift = factors(node, parameters, statistics)
    if before.op in PRODUCTS and users[id(before)] == [node] and _owns_weight(before, users):
        weight = parameters[before.inputs[1][0].name].astype(np.float64)
        rows = scale.reshape((-1,) + (1,) * (weight.ndim - 1))
        _set(graph, before, parameters, weight * rows, _bias(before, parameters) * scale + shift)
        graph.replace(node, (before, 0))
        return True
    after = users[id(node)]
    while len(after) == 1 and after[0].op == 'Flatten':
        after = users[id(after[0])]
    if len(after) == 1 and after[0].op == 'FullyConnected' and _owns_weight(after[0], users):
        weight = parameters[after[0].inputs[1][0].name].astype(np.float64)
        by_channel = weight.reshape(len(weight), len(scale), -1)                              # (D, C, pixels)
        bias = _bias(after[0], parameters) + np.einsum('dcp,c->d', by_channel, shift)
        _set(graph, after[0], parameters, (by_channel * scale[:, None]).reshape(weight.shape), bias)
        graph.replace(node, node.inputs[0])
        return True
    return False


def factors(node, parameters, statistics):
    """(scale, shift) of a batch norm, (C,) float64 each: y = scale * x + shift."""
    gamma, beta = (parameters[one.name].astype(np.float64) for one, _ in node.inputs[1:3])
    mean, variance = (statistics[one.name].astype(np.float64) for one, _ in node.inputs[3:5])
    if node.get('fix_gamma', True):
        gamma = np.ones_like(gamma)
    scale = gamma / np.sqrt(variance + node.get('eps', 1e-3))
    return scale, beta - mean * scale


def _owns_weight(node, users):
    """Whether no other layer has its parameters."""
    return all(len(users[id(one)]) == 1 for one, _ in node.inputs[1:])


def _bias(node, parameters):
    return 0.0 if node.get('no_bias', False) else parameters[node.inputs[2][0].name].astype(np.float64)


def _set(graph, node, parameters, weight, bias):
    """Give a product another weight and bias, float32."""
    if node.get('no_bias', False):
        variable = Node(VARIABLE, node.name + '_bias')
        graph.nodes.insert(graph.nodes.index(node), variable)
        node.inputs.append((variable, 0))
        node.attributes['no_bias'] = 'False'
    for (one, _), array in zip(node.inputs[1:], (weight, bias)):
        parameters[one.name] = array.astype(np.float32)
