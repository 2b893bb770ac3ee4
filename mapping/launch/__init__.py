"""The way from a Megatron launch script to msrun, with the shell deciding: `python -m mapping launch --help`.

__main__    the command
script      runs a script with stand-ins for its launchers on the PATH
stand_in    what the script then starts as torchrun, python, srun ...
launchers   a launcher's command line in msrun's terms
begin       checks flags, then prints or starts msrun
start       msrun as a child: what is shown of it, a training's steps as one line of a terminal, and how it ends
"""
