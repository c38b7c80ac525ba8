"""Conversion of a network to an int8 .tflite file by TensorFlow, in a separate environment: `python tflite_of.py LAYERS.json OUT.tflite`.

LAYERS.json is the output of `scripts.compare_vela.layer_table` for an ONNX model: operators with their inputs, sizes and windows, no
weights.  Weights, and activations for their ranges, are random.  Padding is `SAME` wherever that gives the same size: where a window of
stride 2 pads both sides, TensorFlow pads one, and moves the same bytes without a separate operator.
"""

import json
import sys

import numpy as np
import tensorflow as tf


def _mean(x):
    return tf.reduce_mean(x, [1, 2], keepdims=True)


def network(layers, x):
    """The network on a tensor [1, h, w, c]."""
    rng = np.random.default_rng(0)

    def random_weights(*shape):
        return tf.constant(rng.normal(0, (2 / np.prod(shape[:-1])) ** 0.5, shape).astype(np.float32))

    tensors = {"": x}
    for layer in layers:
        values = [tensors[name] for name in layer["inputs"]]
        x, kind = values[0], layer["kind"]
        if kind == "conv":
            if layer["groups"] == 1:
                y = tf.nn.conv2d(x, random_weights(*layer["kernel"], x.shape[-1], layer["channels"]), layer["stride"], layer["padding"])
            else:
                y = tf.nn.depthwise_conv2d(x, random_weights(*layer["kernel"], x.shape[-1], 1), [1, *layer["stride"], 1], layer["padding"])
            y = tf.nn.bias_add(y, tf.constant(rng.normal(0, 0.1, layer["channels"]).astype(np.float32)))
        elif kind == "dense":
            y = tf.matmul(tf.reshape(x, [1, -1]), random_weights(int(np.prod(x.shape)), layer["channels"]))
        elif kind == "max_pool":
            y = tf.nn.max_pool2d(x, layer["kernel"], layer["stride"], layer["padding"])
        elif kind in ("concat", "add"):
            y = tf.concat(values, -1) if kind == "concat" else tf.add(*values)
        else:
            y = {"relu": tf.nn.relu, "relu6": tf.nn.relu6, "mean": _mean, "softmax": tf.nn.softmax}[kind](x)
        tensors[layer["output"]] = y
    return y


def tflite(layers, shape):
    """The file.  shape: of the input, [1, h, w, c]."""
    function = tf.function(lambda x: network(layers, x)).get_concrete_function(tf.TensorSpec(shape, tf.float32))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    rng = np.random.default_rng(1)
    converter.representative_dataset = lambda: ([rng.normal(0, 1, shape).astype(np.float32)] for _ in range(2))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


with open(sys.argv[1], encoding="utf-8") as file:
    description = json.load(file)
with open(sys.argv[2], "wb") as out:
    out.write(tflite(description["layers"], description["input"]))
