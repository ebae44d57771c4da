package cluster

// PodRange4 and PodRange6 are where pods' addresses are from: the size that most clusters have.
const (
	PodRange4 = "10.244.0.0/16"
	PodRange6 = "fd44::/48"
)

// startControllers starts kube-controller-manager and kube-scheduler, each as the user that the API
// server's own RBAC objects are about, and with its own configuration but for what one machine
// forces.
func (c *Cluster) startControllers() error {
	for _, p := range [...]struct {
		name, path string
		flags      []string
	}{
		{"kube-controller-manager", c.binaries.Controllers, []string{
			"--use-service-account-credentials", "--root-ca-file=" + c.path("ca.crt"),
			"--service-account-private-key-file=" + c.path("token.key"),
			"--cluster-cidr=" + PodRange4 + "," + PodRange6, "--allocate-node-cidrs=false",
		}},
		{"kube-scheduler", c.binaries.Scheduler, nil},
	} {
		user, err := c.CertificateUser("system:" + p.name)
		if err != nil {
			return err
		}
		kubeconfig, err := c.Kubeconfig(user, "")
		if err != nil {
			return err
		}
		// One of each: there is nobody to elect against. Nobody reads their metrics, so the
		// kernel may choose the port.
		flags := append([]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
			"--secure-port=0", "--v=1"}, p.flags...)
		process, err := c.launch(p.name, p.path, flags)
		if err != nil {
			return err
		}
		c.controllers = append(c.controllers, process)
	}
	return nil
}

// Port is the API server's, on loopback and on Config.Address.
func (c *Cluster) Port() uint16 { return uint16(c.port.number) }
