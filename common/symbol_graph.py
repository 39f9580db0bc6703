"""A symbol as a list of nodes that can be changed, and what inference does without."""
import json

from common.errors import UserError
from common.mxnet_loader import mx

VARIABLE = 'null'                    # the operator of inputs and parameters
PASSED = ('Dropout', '_copy', 'BlockGrad')       # change nothing outside of training
FLOATS = ('float16', 'float32')
EMBEDDING = 'fc1'                    # the layer that gives it, in our networks and those of insightface


class Node:
    """An operator or a variable. inputs: [(Node, number of its output), ...]; attributes: {name: text}."""

    def __init__(self, op, name, attributes=None, inputs=()):
        self.op, self.name = op, name
        self.attributes, self.inputs = dict(attributes or {}), list(inputs)

    def get(self, name, default):
        """An attribute that is a number, a truth value or a tuple of numbers, as such. default: where it is absent."""
        text = self.attributes.get(name)
        if text in (None, 'None'):
            return default
        if text in ('True', 'False'):
            return text == 'True'
        return json.loads(text.replace('(', '[').replace(',)', ']').replace(')', ']'))


class Graph:
    """nodes: each behind those that it needs; output: (Node, number of its output)."""

    def __init__(self, nodes, output, attributes):
        """attributes: what else the file of the symbol says, such as the version of MXNet."""
        self.nodes, self.output, self.attributes = nodes, output, attributes

    @classmethod
    def of(cls, symbol, layer=None):
        """The part of a symbol that a layer needs. layer: its name, None for the only output there is. UserError."""
        content = json.loads(symbol.tojson())
        nodes = []
        for node in content['nodes']:
            inputs = [(nodes[place], number) for place, number, *_ in node['inputs']]
            nodes.append(Node(node['op'], node['name'], node.get('attrs'), inputs))
        named = [node for node in nodes if node.op != VARIABLE and node.name == layer]
        heads = [(nodes[place], number) for place, number, *_ in content['heads']]
        if not named and (layer or len(heads) != 1):
            raise UserError('the symbol has no layer %s (--layer): its last ones are %s' % (
                layer or EMBEDDING, ', '.join(node.name for node in nodes[-16:] if node.op != VARIABLE)))
        graph = cls(nodes, (named[0], 0) if named else heads[0], content['attrs'])
        graph.prune()
        return graph

    def prune(self):
        """Drop what the output does not need."""
        needed = {id(self.output[0])}
        for node in reversed(self.nodes):
            if id(node) in needed:
                needed.update(id(one) for one, _ in node.inputs)
        self.nodes = [node for node in self.nodes if id(node) in needed]

    def users(self):
        """{id of a node: nodes that take an output of it}"""
        found = {id(node): [] for node in self.nodes}
        for node in self.nodes:
            for one, _ in node.inputs:
                found[id(one)].append(node)
        return found

    def replace(self, old, new):
        """Have a node's users take `new`, (Node, number), for its first output. The graph's output keeps its name."""
        for node in self.nodes:
            node.inputs = [new if one is old and number == 0 else (one, number) for one, number in node.inputs]
        if self.output[0] is old:
            self.output, new[0].name = new, old.name

    def variables(self):
        return [node.name for node in self.nodes if node.op == VARIABLE]

    def symbol(self):
        """The symbol of MXNet."""
        places = {id(node): place for place, node in enumerate(self.nodes)}
        nodes = []
        for node in self.nodes:
            nodes.append({'op': node.op, 'name': node.name,
                          'inputs': [[places[id(one)], number, 0] for one, number in node.inputs]})
            if node.attributes:
                nodes[-1]['attrs'] = node.attributes
        arguments = [place for place, node in enumerate(self.nodes) if node.op == VARIABLE]
        return mx.sym.load_json(json.dumps({
            'nodes': nodes, 'arg_nodes': arguments, 'heads': [[places[id(self.output[0])], self.output[1], 0]],
            'attrs': self.attributes}))


def strip_training(graph):
    """Leave out what only training needs: dropout, half precision, the fast form of PReLU, notes on parameters."""
    for node in list(graph.nodes):
        if node.op == VARIABLE:
            node.attributes = {}
        elif node.op in PASSED or is_cast(node):
            graph.replace(node, node.inputs[0])
        elif node.op == 'Cast' and node.attributes['dtype'] in FLOATS:
            node.attributes['dtype'] = 'float32'
        elif is_fast_prelu(node):
            data, slope = node.inputs[0][0].inputs
            node.op, node.attributes = 'LeakyReLU', {'act_type': 'prelu'}
            node.inputs = [data, slope[0].inputs[0]]
    graph.prune()


def is_cast(node):
    """Whether a node only changes the precision of something computed."""
    return node.op == 'Cast' and node.attributes['dtype'] in FLOATS and node.inputs[0][0].name != 'data'


def is_fast_prelu(node):
    """Whether it is a * x + (1 - a) * max(x, 0), as symbols.blocks.fast_prelu writes it."""
    if node.op != 'elemwise_add' or any(one.op != 'Convolution' for one, _ in node.inputs):
        return False
    (data, slope), (rectified, rest) = ([one for one, _ in product.inputs[:2]] for product, _ in node.inputs)
    return (slope.op == 'Reshape' and rest.op == '_rminus_scalar' and rest.inputs[0][0] is slope
            and rectified.op == 'Activation' and rectified.attributes['act_type'] == 'relu'
            and rectified.inputs[0][0] is data)
