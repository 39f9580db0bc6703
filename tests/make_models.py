"""Networks with random but sensible parameters, saved as checkpoints."""
import numpy as np

from common.saved_model import SavedModel
from symbols import get_backbone, list_backbones
from symbols.embedding import OUTPUTS

SMALL = {'fmobilefacenet': {'net_blocks': (1, 1, 1, 1), 'net_multiplier': 0.25}, 'fresnet': {'num_layers': 18},
         'fmobilenet': {'net_multiplier': 0.25}, 'iresnet': {'num_layers': 18},
         'vargfacenet': {'net_multiplier': 0.25}}

# (family, output type), of all that go together: vargfacenet has a map of 1x1
OUTPUTS_OF_FAMILIES = [(family, output) for family in list_backbones() for output in OUTPUTS
                       if (family, output) != ('vargfacenet', 'GDC')]


def random_model(family, embedding_size=32, **settings):
    """SavedModel; batch norms have statistics and factors of their own."""
    symbol = get_backbone(family)(embedding_size=embedding_size, **dict(SMALL[family], **settings))
    arguments, _, auxiliary = symbol.infer_shape(data=(2, 3, 112, 112))
    rng, parameters, statistics = np.random.RandomState(0), {}, {}
    for name, shape in list(zip(symbol.list_arguments(), arguments))[1:]:
        if name.endswith('weight'):
            parameters[name] = rng.randn(*shape) * np.sqrt(2 / np.prod(shape[1:]))
        else:
            parameters[name] = rng.uniform(0.2, 1.5, shape) if name.endswith('gamma') else rng.randn(*shape) / 10
    for name, shape in zip(symbol.list_auxiliary_states(), auxiliary):
        scale, mean = (5000, 127.5) if name.startswith('bn_data') else (1, 0)
        statistics[name] = (rng.uniform(0.5, 2, shape) * scale if name.endswith('var')
                            else mean + rng.randn(*shape) / 10)
    return SavedModel(symbol, *({name: array.astype(np.float32) for name, array in part.items()}
                                for part in (parameters, statistics)))
