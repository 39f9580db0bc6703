"""Presets: what --network, --dataset and --loss stand for. Change them or add your own here.

Names and meanings are those of insightface; recognition/settings.py lists every setting with its unit and values.
The layers are  default <- network <- dataset <- loss <- command line, the later ones winning.
"""
from easydict import EasyDict

from recognition.settings import compose, defaults, preset

default = defaults()                       # to change one for all runs: default.lr = 0.05

network = EasyDict()
network.r18 = EasyDict(net_name='fresnet', num_layers=18)
network.r34 = EasyDict(net_name='fresnet', num_layers=34)
network.r50 = EasyDict(net_name='fresnet', num_layers=50)
network.r100 = EasyDict(net_name='fresnet', num_layers=100)
network.r124 = EasyDict(net_name='fresnet', num_layers=124)
network.r152 = EasyDict(net_name='fresnet', num_layers=152)
network.r200 = EasyDict(net_name='fresnet', num_layers=200)
network.ir18 = EasyDict(net_name='iresnet', num_layers=18)
network.ir34 = EasyDict(net_name='iresnet', num_layers=34)
network.ir50 = EasyDict(net_name='iresnet', num_layers=50)
network.ir100 = EasyDict(net_name='iresnet', num_layers=100)
network.ir200 = EasyDict(net_name='iresnet', num_layers=200)
network.m1 = EasyDict(net_name='fmobilenet', emb_size=256, net_output='GDC', net_multiplier=1.0)
network.m05 = EasyDict(net_name='fmobilenet', emb_size=256, net_output='GDC', net_multiplier=0.5)
network.y1 = EasyDict(net_name='fmobilefacenet', emb_size=128, net_output='GDC')
network.y2 = EasyDict(net_name='fmobilefacenet', emb_size=256, net_output='GDC', net_blocks=[2, 8, 16, 4])
network.vargfacenet = EasyDict(net_name='vargfacenet', emb_size=512, net_output='J', net_multiplier=1.25)
network.demo = EasyDict(net_name='fmobilefacenet', emb_size=128, net_output='GDC', net_act='relu',
                        net_blocks=[1, 1, 1, 1], net_multiplier=0.25)

# Where num_classes and image_shape are not given, the file `property` of the set says them.
dataset = EasyDict()
dataset.emore = EasyDict(dataset_path='../datasets/faces_emore', num_classes=85742, image_shape=[112, 112, 3])
dataset.retina = EasyDict(dataset_path='../datasets/ms1m-retinaface-t1', num_classes=93431, image_shape=[112, 112, 3])
dataset.glint360k = EasyDict(dataset_path='../datasets/glint360k', num_classes=360232, image_shape=[112, 112, 3])
dataset.casia = EasyDict(dataset_path='../datasets/faces_webface_112x112')
dataset.webface42m = EasyDict(dataset_path='../datasets/webface42m')
dataset.demo = EasyDict(dataset_path='./datasets/demo', val_targets=['demo'],        # rendered on first use
                        per_batch_size=32, lr_steps=[400, 520], max_steps=600, verbose=100)

loss = EasyDict()
loss.softmax = EasyDict(loss_name='softmax')
loss.nsoftmax = EasyDict(loss_name='margin_softmax', loss_s=64.0, loss_m1=1.0, loss_m2=0.0, loss_m3=0.0)
loss.arcface = EasyDict(loss_name='margin_softmax', loss_s=64.0, loss_m1=1.0, loss_m2=0.5, loss_m3=0.0)
loss.cosface = EasyDict(loss_name='margin_softmax', loss_s=64.0, loss_m1=1.0, loss_m2=0.0, loss_m3=0.35)
loss.combined = EasyDict(loss_name='margin_softmax', loss_s=64.0, loss_m1=1.0, loss_m2=0.3, loss_m3=0.2)
loss.elasticarc = EasyDict(loss_name='margin_softmax', loss_s=64.0, loss_m2=0.5, loss_m2_std=0.05)
loss.elasticcos = EasyDict(loss_name='margin_softmax', loss_s=64.0, loss_m3=0.35, loss_m3_std=0.05)
loss.adaface = EasyDict(loss_name='adaface', loss_s=64.0, loss_ada_m=0.4, loss_ada_h=0.333)


def generate_config(_network, _dataset, _loss):
    """One new flat EasyDict of the named presets. Nothing else is changed. UsageError lists the known names."""
    names = {'network': _network, 'dataset': _dataset, 'loss': _loss}
    tables = {'network': network, 'dataset': dataset, 'loss': loss}
    return compose(default, *[preset(kind, tables[kind], names[kind]) for kind in tables], names)
