"""matplotlib, imported only when something is drawn, and never with a screen."""
from common.errors import UserError


def new_figure(needed_by, **options):
    """matplotlib Figure; options: figsize, dpi, layout. Write it with savefig(). UserError: see require_matplotlib."""
    return require_matplotlib(needed_by)(**options)


def require_matplotlib(needed_by):
    """matplotlib's class Figure. UserError with the remedy if it is not installed; needed_by: a flag, or 'pictures'."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError('%s needs matplotlib (%s): pip install matplotlib' % (needed_by, error)) from None
    return Figure
