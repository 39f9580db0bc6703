"""Images -> embeddings: one copy of the network per device, kept equal by Module."""
from common.errors import UserError
from common.mxnet_loader import mx
from recognition.loss_scale import all_finite


class FloatXavier(mx.init.Xavier):
    """Xavier's normal numbers for residual networks, drawn in float32 whatever the weight's type is, so that a
    half precision run starts from the rounded weights of the float32 run with its seed."""

    def __init__(self):
        super().__init__(rnd_type='gaussian', factor_type='out', magnitude=2)

    def _init_weight(self, name, arr):
        drawn = mx.nd.zeros(arr.shape, ctx=arr.context)
        super()._init_weight(name, drawn)
        arr[:] = drawn


class Backbone:
    """B images per step over all contexts of this process; each context takes B / len(contexts)."""

    def __init__(self, symbol, contexts, batch_size, image_shape, seed):
        """symbol: images 'data' -> embedding; image_shape (3, H, W); seed of the initial weights."""
        if batch_size % len(contexts):
            raise UserError('a batch of %d images cannot be divided over %d devices: change per_batch_size'
                            % (batch_size, len(contexts)))
        self.batch_size, self.image_shape, self.contexts = batch_size, tuple(image_shape), contexts
        self._module = mx.mod.Module(symbol, data_names=('data',), label_names=None, context=contexts)
        images = mx.io.DataDesc('data', (batch_size,) + self.image_shape, dtype='uint8')
        self._module.bind(data_shapes=[images], for_training=True)
        mx.random.seed(seed)
        self._module.init_params(FloatXavier())

    @property
    def embedding_size(self):
        return self._module.output_shapes[0][1][1]

    def init_optimizer(self, solver, kvstore='device', loss_scale=None):
        """SGD with momentum. loss_scale: of half precision, with float32 master weights; None for float32."""
        self.loss_scale = loss_scale
        self._module.init_optimizer(kvstore=kvstore, optimizer='sgd', optimizer_params={
            'learning_rate': solver.schedule.base_lr, 'lr_scheduler': solver.schedule,
            'momentum': solver.momentum, 'wd': solver.wd, 'rescale_grad': 1.0,
            'multi_precision': loss_scale is not None})

    def forward(self, images, is_train=True):
        """images (B, 3, H, W) uint8 -> embedding (B, D) float32 on the first context."""
        self._module.forward(mx.io.DataBatch(data=[images]), is_train=is_train)
        return self._module.get_outputs()[0]

    def backward(self, d_embedding):
        """d_embedding (B, D) float32: gradient of the loss for this process's embeddings, without loss scale."""
        if self.loss_scale is not None:
            self._module._optimizer.rescale_grad = 1.0 / self.loss_scale.value
            d_embedding = d_embedding * self.loss_scale.value
        self._module.backward([d_embedding])

    def update(self, num_update):
        """Sum the gradients over the devices and take the SGD step of that number, with the learning rate of it.

        In half precision a step whose gradients overflowed is skipped, see recognition/loss_scale.py; UserError after
        too many of them.
        """
        if self.loss_scale is not None:
            finite = all_finite(self._module._exec_group.grad_arrays)
            if not self.loss_scale.accept(finite, num_update):
                self._module._params_dirty = True              # the running statistics have moved all the same
                return
        self._module._optimizer.num_update = num_update        # skipped steps count, as for the class centers
        self._module.update()

    def embed(self, images):
        """images (B, 3, H, W) uint8 NumPy -> embedding (B, D) NumPy; nothing is trained."""
        return self.forward(mx.nd.array(images, dtype='uint8'), is_train=False).asnumpy()

    def parameters(self):
        """(arg_params, aux_params) on the host. Running statistics are averaged over the devices."""
        return self._module.get_params()

    def set_parameters(self, arg_params, aux_params):
        """Set every parameter, on every device."""
        self._module.set_params(arg_params, aux_params)

    def average_statistics(self):
        """Give every device the same running statistics: what is evaluated is what is saved."""
        if len(self.contexts) > 1:
            self.set_parameters(*self.parameters())
