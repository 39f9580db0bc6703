"""The only place that imports MXNet. Everybody else says `from common.mxnet_loader import mx`.

MXNet 1.9.1 is older than the Pythons and NumPys it meets; what it needs of them is mended or
explained here, once.
"""
import importlib.util
import os

import numpy as np

from common.cuda_libraries import load_cuda_libraries
from common.errors import UserError

REMEDY = 'pip install mxnet==1.9.1 (CPU) or mxnet-cu112==1.9.1 (GPU)'


def _import_mxnet():
    """Import MXNet under NumPy 1.17 to 1.26 and Python 3.8 to 3.13, or raise UserError with the remedy."""
    if int(np.__version__.split('.')[0]) >= 2:
        raise UserError('NumPy %s is too new for MXNet 1.9.1: pip install "numpy<2"' % np.__version__)
    if importlib.util.find_spec('distutils') is None:    # Python >= 3.12 has none; setuptools < 80 brings it
        raise UserError('MXNet needs distutils, which this Python lacks: pip install "setuptools<80"')
    if 'bool' not in np.__dict__:
        np.bool = bool  # removed in NumPy 1.24, used while MXNet is imported
    os.environ.setdefault('MXNET_SUBGRAPH_BACKEND', 'NONE')  # oneDNN subgraphs fail at the second inference
    # Temporary memory of operators is shared by all CPU contexts: with the usual 4 pieces, devices wait for each other
    os.environ.setdefault('MXNET_CPU_TEMP_COPY', '128')
    # The tuning at start measures small arrays, and then leaves element-wise passes over large ones to one thread
    os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
    load_cuda_libraries()
    try:
        import mxnet
    except ModuleNotFoundError as error:
        if error.name == 'mxnet':
            raise UserError('MXNet is not installed: %s' % REMEDY) from None
        raise UserError('MXNet needs the module %s: install it, or %s' % (error.name, REMEDY)) from None
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise UserError('MXNet is installed but does not start (%s): %s' % (error, REMEDY)) from None
    return mxnet


mx = _import_mxnet()
