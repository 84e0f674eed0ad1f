"""Layers and models. Read `initial`, `layer`, `config`, `encoders`, `backbones`, `heads`, `model`; then `presets`,
`streaming`, `pretrained`. `config` needs no torch."""
