"""Networks: pure functions that build the symbol images -> embedding, found by name.

A builder takes keyword arguments only (see symbols/blocks.py for those that all families share) and returns the
symbol `fc1_output`, (B, embedding_size) float32. Its only input that is not a parameter is `data`,
(B, 3, H, W), uint8 or float32, values 0 to 255.
"""
from symbols.registry import get_backbone, list_backbones, register_backbone

__all__ = ['get_backbone', 'list_backbones', 'register_backbone']
