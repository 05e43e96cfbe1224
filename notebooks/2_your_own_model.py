# %% [markdown]
# # Your own model
#
# A network for **normalised** images forgets one class. Its data are batches of dictionaries, as many training
# loops use them. The steps are those of a deployed model:
#
# 1. **inspect** the network;
# 2. see how pour refuses images with a wrong normalisation;
# 3. **forget**, **save** and **load**;
# 4. **audit**, with pictures;
# 5. **export** plain weights, and load them into the plain network.

# %% [markdown]
# ## The data
#
# The dataset returns dictionaries with `pixel_values` and `labels`. Its images are normalised with the mean and
# the deviation of the training images. The parameter `normalise` is there to make a mistake later.

# %%
import textwrap

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

import pour

torch.set_num_threads(1)
source = load_digits()
PIXELS = torch.tensor(source.images, dtype=torch.float32).unsqueeze(1) / 16  # values in [0, 1]
LABELS = torch.tensor(source.target)
MEAN, STD = PIXELS[:1200].mean().item(), PIXELS[:1200].std().item()
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Scans(Dataset):
    """Images of one split as dictionaries."""

    def __init__(self, rows, normalise=True):
        self.rows, self.normalise = list(rows), normalise

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        image = PIXELS[self.rows[index]]
        return {
            "pixel_values": (image - MEAN) / STD if self.normalise else image * 255,
            "labels": LABELS[self.rows[index]],
        }


train, test = Scans(range(1200)), Scans(range(1200, len(PIXELS)))
batch = next(iter(DataLoader(train, batch_size=64)))
print({name: tuple(values.shape) for name, values in batch.items()})
print(f"mean {batch['pixel_values'].mean():.2f}, deviation {batch['pixel_values'].std():.2f}")

# %% [markdown]
# ## The network
#
# A plain `nn.Module` with two linear layers. It knows nothing of pour.


# %%
class ScanNet(nn.Module):
    """Two convolutions, a hidden layer, and the head."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )
        self.hidden = nn.Linear(128, 32)
        self.classify = nn.Linear(32, num_classes)

    def forward(self, pixel_values):
        return self.classify(torch.relu(self.hidden(self.features(pixel_values))))


torch.manual_seed(0)
network = ScanNet()
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
for _ in range(12):
    for batch in DataLoader(train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch["pixel_values"]), batch["labels"]).backward()
        optimizer.step()
network.eval()


def accuracy(model, name):
    rows = [index for index in test.rows if CLASSES[LABELS[index]] == name]
    return (model((PIXELS[rows] - MEAN) / STD).argmax(dim=1) == LABELS[rows]).float().mean().item()


print({name: f"{accuracy(network, name):.0%}" for name in CLASSES})

# %% [markdown]
# ## Inspect
#
# `pour.inspect` finds the head, verifies it on images, and recommends a method.

# %%
inspection = pour.inspect(network, {"train": train, "test": test}, classes=[3], device="cpu")
print(inspection)

# %% [markdown]
# ## A mistake: images that are not normalised
#
# This loader yields pixels from 0 to 255. The network does not recognise them. pour checks this before any work.
# The message reports the likely cause: with other inputs, the network recognises the class again. Among the
# normalisations that pour tries, that of CIFAR is near enough to the one of this network.

# %%
threes = [index for index in train.rows if LABELS[index] == 3]
wrong = DataLoader(Scans(threes, normalise=False), batch_size=32)
try:
    pour.unlearn(network, classes=[3], forget=wrong, device="cpu", progress=False)
except pour.PourError as error:
    print(textwrap.fill(f"{type(error).__name__}: {error}", 100))

# %% [markdown]
# ## Forget, save, load
#
# The right loader has normalised images. The file contains the model, its class names and its history.

# %%
right = DataLoader(Scans(threes), batch_size=32)
student = pour.unlearn(network, classes=[3], forget=right, device="cpu", progress=False)
pour.save(student, "student.safetensors", class_names=CLASSES)
again = pour.load("student.safetensors", ScanNet())
print(pour.history(again))
print({name: f"{accuracy(again, name):.0%}" for name in CLASSES})

# %% [markdown]
# ## Audit, with pictures
#
# `pictures=True` keeps in the report what its page draws. `write_report` writes the page.

# %%
report = pour.audit(
    original=network, unlearned=again, data={"train": train, "test": test}, classes=[3], pictures=True,
    device="cpu", progress=False,
)
for sentence in report.summary:
    print(sentence)
page = pour.write_report(report, "report.html")
print(f"{page}: {page.stat().st_size // 1000} kB")

# %% [markdown]
# There is no verdict without `retrained=`: a model that was trained without the class shows what to expect.
#
# ## Export
#
# `pour.export` writes weights with the keys of `ScanNet`. Code without pour loads them. A process without pour
# compares the outputs first.

# %%
example = next(iter(DataLoader(test, batch_size=64)))["pixel_values"]
print(pour.export(again, "network.pt", example=example))

plain = ScanNet()
plain.load_state_dict(torch.load("network.pt", weights_only=True))
plain.eval()
retained = [index for index, name in enumerate(CLASSES) if name != "three"]
with torch.no_grad():
    difference = (plain(example) - again(example)).abs()[:, retained].max().item()
print(f"largest difference of the retained scores: {difference:.1e}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 2.6), sharey=True)
for axis, (title, model) in zip(axes, {"original": network, "exported": plain}.items()):
    colours = ["#d9822b" if name == "three" else "#4f7be0" for name in CLASSES]
    axis.bar(CLASSES, [accuracy(model, name) for name in CLASSES], color=colours)
    axis.set_title(title)
    axis.tick_params(axis="x", rotation=45)
_ = axes[0].set_ylabel("accuracy")
