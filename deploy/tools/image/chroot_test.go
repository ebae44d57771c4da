package main

import "syscall"

func chroot(dir string) *syscall.SysProcAttr { return &syscall.SysProcAttr{Chroot: dir} }
