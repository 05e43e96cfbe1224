# %% [markdown]
# # First forgetting
#
# A plain network learns the ten digits. Then it forgets the digit 3, from images of threes alone.
# A second network that never saw a 3 is the reference.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pour

torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # values in [0, 1]
labels = torch.tensor(digits.target)
train = TensorDataset(images[:1200], labels[:1200])
test = TensorDataset(images[1200:], labels[1200:])

figure, axes = plt.subplots(1, 10, figsize=(8, 1))
for digit, axis in enumerate(axes):
    axis.imshow(images[labels == digit][0, 0], cmap="gray_r")
    axis.axis("off")

# %% [markdown]
# ## Train
#
# The same function trains the original, and the reference without threes.


# %%
def trained(data, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(25):
        for inputs, targets in DataLoader(data, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
    return network.eval()


def subset(data, keep):
    inputs, targets = data.tensors
    rows = keep(targets)
    return TensorDataset(inputs[rows], targets[rows])


original = trained(train, seed=0)
retrained = [trained(subset(train, lambda y: y != 3), seed) for seed in (1, 2)]

# %% [markdown]
# ## Forget
#
# `pour.unlearn` gets the images of the class in a loader. It needs no option.

# %%
threes = DataLoader(subset(train, lambda y: y == 3), batch_size=32)
student = pour.unlearn(original, classes=[3], forget=threes, device="cpu", progress=False)


def confusion(network):
    answers = network(test.tensors[0]).argmax(dim=1)
    return torch.zeros(10, 10).index_put((test.tensors[1], answers), torch.tensor(1.0), accumulate=True)


figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
for axis, (name, network) in zip(axes, {"original": original, "student": student, "retrained": retrained[0]}.items()):
    axis.imshow(confusion(network).detach(), cmap="Blues", vmax=60)
    axis.set_title(name)
    axis.set_xlabel("answer")
_ = axes[0].set_ylabel("digit")

# %% [markdown]
# The row of the 3 is spread over other digits, as in the retrained network. All other rows stay.
#
# ## Audit
#
# The audit compares the student with both retrained networks. It ends with three sentences.

# %%
report = pour.audit(
    original=original,
    unlearned=student,
    retrained=retrained,
    data={"train": train, "test": test},
    classes=[3],
    device="cpu",
    progress=False,
)
for sentence in report.summary:
    print(sentence)

# %%
pour.write_report(report, "report.html")
print("report.html is one file; open it in a browser.")
