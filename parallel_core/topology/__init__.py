"""Groups of ranks: the rank grids of a job, and its process groups.

python -m mapping plan groups --world-size 10240 --tensor-model-parallel-size 8 --rank 4711
"""

from parallel_core.topology.topology import AXES, KINDS, RankGrid, Topology
