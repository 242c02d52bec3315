"""Training on more than one device or machine, by engines that exist.

training        `fit` over several processes, with TensorFlow's MultiWorkerMirroredStrategy
steps           one step of all processes together
shares          which rows of a batch a process reads, and how much its mean counts
backup          what a training that was killed goes on from
workers         the processes: how many, and which is the chief
layouts         how the weights of our layers are split, for keras.distribution on JAX
"""
