package ports

const nic = "nic0"
