"""An Ascend without the hardware: every operator and every HCCL call that our device path makes is a double.

A double checks the call against MindSpore's own definition and against the limits that MindSpore and CANN document
(`definitions.py`), then computes by the composed operators on the CPU or communicates over our shared memory. What
uses it is our own code, whole training runs of it. The kernels themselves are not here: nothing of this shows that an
Ascend computes what its documentation says.
"""
