"""The pure core: values in, values out.

Four rules hold here and `make lint` checks the first two:

1. nothing reads a file, a clock, an API, a GPU or the environment; time and chance are arguments;
2. nothing but the standard library's pure parts is imported (jsonpatch in `pod.patch` alone);
3. pods stay plain dicts, so that fields we do not know survive; our own values are frozen;
4. a pod that was handed in is never changed: steps return new dicts and share the rest.
"""
