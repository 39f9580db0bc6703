"""From a saved backbone to what is deployed: the layers that inference needs, float32."""
import numpy as np

from common.batch_norm_folding import fold_batch_norms
from common.errors import UserError
from common.saved_model import Embedder, SavedModel
from common.symbol_graph import EMBEDDING, Graph, strip_training


def inference_model(model, layer=None, fold=False):
    """SavedModel with float32 parameters, up to the embedding, without labels and layers that only train.

    layer: name of the one that gives the embedding; None: EMBEDDING if there is one, else the only output.
    fold: fold batch norms, see fold_batch_norms.
    UserError if a parameter is missing, or inputs other than `data` are left.
    """
    has_embedding = EMBEDDING + '_output' in model.symbol.get_internals().list_outputs()
    graph = Graph.of(model.symbol, layer or (EMBEDDING if has_embedding else None))
    strip_training(graph)
    parameters, statistics = ({name: array.astype(np.float32) for name, array in part.items()}
                              for part in (model.parameters, model.statistics))
    missing = [name for name in graph.variables() if name not in parameters and name not in statistics]
    if missing != ['data']:
        raise UserError('the symbol needs %s, the .params file has them not; only `data` is an input' % ', '.join(
            name for name in missing if name != 'data') if 'data' in missing else 'the symbol has no input `data`')
    for node in graph.nodes:
        if node.op == 'BatchNorm' and node.get('fix_gamma', True):
            parameters[node.inputs[1][0].name] = np.ones_like(parameters[node.inputs[1][0].name])
    if fold:
        fold_batch_norms(graph, parameters, statistics)
    needed = set(graph.variables())
    return SavedModel(graph.symbol(), *({name: array for name, array in part.items() if name in needed}
                                        for part in (parameters, statistics)))


def sample_embeddings(model, size):
    """(2, D) float32: the embeddings of two noise images of (h, w), always the same, to compare models with."""
    return Embedder(model, 2, size)(noise_images(size))


def noise_images(size):
    """(2, 3, h, w) float32 of whole numbers 0 to 255."""
    return np.random.RandomState(0).randint(0, 256, (2, 3) + tuple(size)).astype(np.float32)


def difference(found, expected):
    """The largest distance of embeddings (n, D) from what they should be, relative to the length of these."""
    length = np.maximum(np.linalg.norm(expected, axis=1), np.finfo(np.float32).tiny)
    return float((np.linalg.norm(found - expected, axis=1) / length).max())
