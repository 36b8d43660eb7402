"""Trains a tiny U-Net with MONAI's engine on parts of the data; prints its parameters."""

import torch
from monai.data import CacheDataset, DataLoader, partition_dataset
from monai.engines import SupervisedTrainer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.utils import evenly_divisible_all_gather
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
images = [
    {"image": torch.randn(1, 8, 8), "label": torch.randint(2, (1, 8, 8)).float()} for _ in range(32)
]
mine = partition_dataset(images, num_partitions=world_size, seed=0, shuffle=True)[rank]
model = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,))
network = DistributedDataParallel(model)
trainer = SupervisedTrainer(
    device=torch.device("cpu"),
    max_epochs=3,
    train_data_loader=DataLoader(CacheDataset(mine, progress=False), batch_size=4),
    network=network,
    optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
    loss_function=DiceLoss(sigmoid=True),
)
trainer.run()
gathered = evenly_divisible_all_gather(torch.full((rank + 1,), float(rank)))
assert gathered.tolist() == [0, 1, 1]
total = sum(parameter.double().sum().item() for parameter in model.parameters())
group = f"{type(dist.group.WORLD).__name__} {dist.get_backend()}"
print(f"model {total!r} group {group}", flush=True)
dist.destroy_process_group()
