"""Runs the PTX that NVRTC writes, without a GPU: `parse` reads it, `instructions` and `machine` run it, `memory` and
`copies` say what may see what.

It follows the rules of PTX and knows nothing of a device's speed: neither caches nor what becomes of PTX on one.
"""
