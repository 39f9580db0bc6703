"""Small face sets for tests, whole and broken. Every function returns the path of the .rec as text.

Image i of a set is a flat colour with a few stripes that tell it from the others; see jpeg().
"""
import cv2
import numpy as np

from common.face_record import Property, pack_metadata, write_property
from common.recordio import RecordWriter, pack

SIZE = (112, 112)


def picture(number, size=SIZE):
    """uint8 (h, w, 3) RGB, different for every number."""
    rng = np.random.RandomState(number)
    return cv2.resize(rng.randint(0, 256, (5, 4, 3)).astype(np.uint8), size[::-1], interpolation=cv2.INTER_CUBIC)


def encode(rgb, ending='.jpg', *options):
    """RGB (or grey, or RGBA) uint8 -> encoded bytes."""
    if rgb.ndim == 3:
        rgb = cv2.cvtColor(rgb, cv2.COLOR_RGBA2BGRA if rgb.shape[2] == 4 else cv2.COLOR_RGB2BGR)
    return cv2.imencode(ending, rgb, list(options))[1].tobytes()


def jpeg(number, size=SIZE):
    return encode(picture(number, size))


def write_set(folder, payloads, name='train', has_index=True):
    """payloads: {key: payload}, written in the order given."""
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / (name + '.rec'))
    with RecordWriter(path, str(folder / (name + '.idx')) if has_index else None) as writer:
        for key, payload in payloads.items():
            writer.write(key, payload)
    return path


def identity_set(folder, num_classes, per_class, size=SIZE, first_key=1, **replaced):
    """Header record 0, images from first_key on, one identity record per class, and `property`.

    replaced: images={key: payload} puts other image records in.
    """
    num_images = num_classes * per_class
    stop = first_key + num_images
    payloads = {0: pack_metadata(stop, stop + num_classes)}
    for number in range(num_images):
        key = first_key + number
        payloads[key] = pack(number // per_class, jpeg(number, size), key)
    payloads.update(replaced.get('images', {}))
    for number in range(num_classes):
        start = first_key + number * per_class
        payloads[stop + number] = pack_metadata(start, start + per_class)
    path = write_set(folder, payloads)
    write_property(str(folder), Property(num_classes, *size))
    return path


def plain_set(folder, labels, first_key=0, size=SIZE, **replaced):
    """im2rec style: images only, no property. labels: one number, or a sequence of them, per image.

    replaced: images={key: encoded image} puts other images in.
    """
    images = replaced.get('images', {})
    return write_set(folder, {key: pack(label, images[key] if key in images else jpeg(key, size), key)
                              for key, label in enumerate(labels, first_key)})


def edit_index(path, edit):
    """Change the lines of the .idx: edit gets and returns a list of (key, offset)."""
    path = path[:-3] + 'idx'
    with open(path) as stream:
        pairs = [tuple(map(int, line.split())) for line in stream]
    with open(path, 'w') as stream:
        stream.write(''.join('%s\t%s\n' % pair for pair in edit(pairs)))


def cut(path, num_bytes):
    """Take bytes off the end of a file."""
    with open(path, 'rb+') as stream:
        stream.truncate(stream.seek(0, 2) - num_bytes)
