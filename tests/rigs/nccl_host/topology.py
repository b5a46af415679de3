"""The topology of a machine with eight GPUs and eight HCAs, as NCCL_TOPO_FILE has it: /sys here knows none of them."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
"""Of the GPUs on PCI: those of standins/device.h. Each HCA is the device before its GPU, below the same switch."""
GPU = {"vendor": "0x10de", "device": "0x2330", "subsystem_vendor": "0x10de", "subsystem_device": "0x16c1"}
HCA = {"vendor": "0x15b3", "device": "0x1021", "subsystem_vendor": "0x15b3", "subsystem_device": "0x0041"}
SWITCH = {
    "vendor": "0x1000",
    "device": "0xc030",
    "subsystem_vendor": "0x1000",
    "subsystem_device": "0x1003",
}
LINK = {"link_speed": "32.0 GT/s PCIe", "link_width": "16"}


def topology() -> str:
    """The text of the file."""
    system = Element("system", version="1")
    for socket in range(2):
        processor = SubElement(
            system, "cpu", host_hash="0x0", numaid=str(socket), affinity="00000000,ffffffff", arch="x86_64",
            vendor="GenuineIntel", familyid="6", modelid="143",
        )  # fmt: skip
        for number in range(4 * socket, 4 * socket + 4):
            _switch(processor, number)
    return tostring(system, encoding="unicode")


def _switch(processor: Element, number: int) -> None:
    """A GPU and an HCA on one PCI switch."""
    switch = _pci(processor, BUSES[number] - 2, "0x060400", SWITCH)
    gpu = SubElement(
        _pci(switch, BUSES[number], "0x030200", GPU),
        "gpu",
        dev=str(number),
        sm="90",
        rank=str(number),
        gdr="0",
    )
    SubElement(gpu, "nvlink", target="fffffff:ffff:ff", count="18", tclass="0x068000")
    nic = SubElement(_pci(switch, BUSES[number] - 1, "0x020700", HCA), "nic")
    SubElement(
        nic, "net", name=f"mlx5_{number}", dev=str(number), speed="400000", port="1",
        guid=f"0x{0x946DAE0300000000 + number:x}", maxconn="131072", gdr="0", coll="0",
    )  # fmt: skip


def _pci(parent: Element, bus: int, kind: str, names: dict[str, str]) -> Element:
    return SubElement(parent, "pci", {"busid": f"0000:{bus:02x}:00.0", "class": kind, **names, **LINK})
