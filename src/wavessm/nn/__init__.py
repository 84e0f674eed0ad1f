"""Layers and models: `WaveSSM`, the residual block around it, encoders, backbones, heads, `SequenceModel`."""
