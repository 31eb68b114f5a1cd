"""The machine: files, arrays and devices, interrupts, imports."""
