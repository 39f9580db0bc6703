"""Flags by which a command is told of a trained network, and the network that they name."""
from common.command import parse_image_size, require_range
from common.inference_model import inference_model
from common.saved_model import Embedder, find_device, load_model, split_model

MOST_IMAGES = 65536                  # of a batch


def add_network(add, required=False, more=''):
    """--model, --layer and --image-size. add: add_argument of a parser or group; more: said of --model, too."""
    add('--model', required=required, metavar='PREFIX,EPOCH', help='the checkpoint PREFIX-symbol.json, '
        'PREFIX-NNNN.params%s; ,EPOCH may be left out where there is only one' % more)
    add('--layer', metavar='NAME', help='layer that gives the embedding (default: fc1, or the only output)')
    add('--image-size', default='112x112', metavar='HxW', help='height and width of the images in pixels; others are '
        'resized whole (default: %(default)s)')


def add_running(add):
    """--batch-size and --device."""
    add('--batch-size', type=int, default=64, metavar='N', help='images at once (default: %(default)s)')
    add('--device', default='cpu', metavar='D', help='cpu, gpu or gpu:N (default: %(default)s)')


def check_network_flags(args):
    """(h, w) of the images. UsageError for these flags, before any work; UserError for a device that is not there."""
    require_range(args.batch_size, '--batch-size', 1, MOST_IMAGES)
    find_device(args.device)
    return parse_image_size(args.image_size)


def open_embedder(args, size):
    """Embedder of the network that the flags name, for images of (h, w). UserError, UsageError."""
    model = inference_model(load_model(*split_model(args.model)), args.layer)
    return Embedder(model, args.batch_size, size, find_device(args.device))
