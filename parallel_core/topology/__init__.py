"""Groups of ranks: the rank grid, and every process group of a job as a slice of it.

python -m mapping plan groups --world-size 10240 --tensor-model-parallel-size 8 --rank 4711
"""

from parallel_core.topology.topology import AXES, KINDS, RankGrid, Topology
