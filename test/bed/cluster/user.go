package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"sluice.dev/sluice/test/bed/topo"
)

// User is somebody that the API server knows, by certificate or by token.
type User struct {
	Name             string // as RBAC knows it
	certificate, key []byte // PEM
	token            string
}

// Admin may do everything.
func (c *Cluster) Admin() User { return c.admin }

// CertificateUser makes a user of a name and groups. RBAC objects grant its rights; the API server
// creates the objects for "system:kube-proxy" and similar users.
func (c *Cluster) CertificateUser(name string, groups ...string) (User, error) {
	cert, key, err := c.ca.client(name, groups...)
	return User{Name: name, certificate: cert, key: key}, err
}

// ServiceAccount makes a ServiceAccount if there is none yet, and a token for it, as a
// pod gets one (TokenRequest). Without rules it may do what other RBAC objects say;
// with rules, exactly those too, in all namespaces.
func (c *Cluster) ServiceAccount(
	ctx context.Context, namespace, name string, rules ...rbacv1.PolicyRule,
) (User, error) {
	full := "system:serviceaccount:" + namespace + ":" + name
	wrap := func(err error) error { return fmt.Errorf("cluster: service account %s/%s: %w", namespace, name, err) }
	if err := c.ensureNamespace(ctx, namespace); err != nil {
		return User{}, wrap(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	accounts := c.client.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return User{}, wrap(err)
	}
	if len(rules) > 0 {
		if err := c.allow(ctx, namespace, name, rules); err != nil {
			return User{}, wrap(err)
		}
		for i := range rules {
			if err := c.allowed(ctx, full, "", &rules[i]); err != nil {
				return User{}, wrap(err)
			}
		}
	}
	seconds := int64(validity.Seconds())
	t, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return User{}, wrap(err)
	}
	return User{Name: full, token: t.Status.Token}, nil
}

// gatewayRules are the gateway's rights (package control/k8s).
var gatewayRules = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"services", "nodes"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get", "list",
		"watch"}},
	{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
}

// Gateway makes the service account sluice/gateway and returns the path of its kubeconfig, for a
// daemon on a host.
func (c *Cluster) Gateway(ctx context.Context, h *topo.Host) (kubeconfig string, err error) {
	user, err := c.ServiceAccount(ctx, "sluice", "gateway", gatewayRules...)
	if err != nil {
		return "", err
	}
	url, err := c.Expose(h)
	if err != nil {
		return "", err
	}
	return c.Kubeconfig(user, url)
}

// allow replaces the rights of a service account by a ClusterRole and a ClusterRoleBinding named
// after it.
func (c *Cluster) allow(ctx context.Context, namespace, name string, rules []rbacv1.PolicyRule) error {
	meta := metav1.ObjectMeta{Name: namespace + ":" + name}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	roles := c.client.RbacV1().ClusterRoles()
	_, err := roles.Create(ctx, role, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	_, err = c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return err
}

// Tenant makes a ServiceAccount and a token for it. The rules are its only rights, and they hold in
// its own namespace.
func (c *Cluster) Tenant(ctx context.Context, namespace, name string, rules ...rbacv1.PolicyRule) (User, error) {
	user, err := c.ServiceAccount(ctx, namespace, name)
	if err != nil {
		return User{}, err
	}
	wrap := func(err error) error { return fmt.Errorf("cluster: tenant %s/%s: %w", namespace, name, err) }
	meta := metav1.ObjectMeta{Name: name}
	rbac := c.client.RbacV1()
	if _, err := rbac.Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules},
		metav1.CreateOptions{}); err != nil {
		return User{}, wrap(err)
	}
	if _, err := rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{}); err != nil {
		return User{}, wrap(err)
	}
	for i := range rules {
		if err := c.allowed(ctx, user.Name, namespace, &rules[i]); err != nil {
			return User{}, wrap(err)
		}
	}
	return user, nil
}

// allowed waits until the authorizer knows a rule, in one namespace or in all: it learns of RBAC
// objects by watches of its own, some time after they are written.
func (c *Cluster) allowed(ctx context.Context, user, namespace string, rule *rbacv1.PolicyRule) error {
	if len(rule.Resources) == 0 || len(rule.Verbs) == 0 || len(rule.APIGroups) == 0 {
		return nil // about URLs
	}
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	about := authorizationv1.ResourceAttributes{
		Namespace: namespace,
		Verb:      rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
	}
	if len(rule.ResourceNames) > 0 {
		about.Name = rule.ResourceNames[0]
	}
	return topo.Until(ctx, startTimeout, askEvery, func(ctx context.Context) error {
		r, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &about},
		}, metav1.CreateOptions{})
		if err == nil && !r.Status.Allowed {
			err = fmt.Errorf("may not %s %s yet", about.Verb, rule.Resources[0])
		}
		return err
	})
}

// Kubeconfig writes a user's kubeconfig and returns its path, good until Close. The
// server is a URL of Expose; empty means the namespace that the API server runs in.
func (c *Cluster) Kubeconfig(u User, server string) (path string, err error) {
	if server == "" {
		server = c.URL()
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["cluster"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.ca.pem}
	k.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: u.certificate, ClientKeyData: u.key, Token: u.token,
	}
	k.Contexts["context"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "user"}
	k.CurrentContext = "context"
	text, err := clientcmd.Write(*k)
	if err != nil {
		return "", fmt.Errorf("cluster: kubeconfig of %s: %w", u.Name, err)
	}
	f, err := os.CreateTemp(c.dir, "kubeconfig-"+strings.ReplaceAll(u.Name, ":", "-")+"-*")
	if err != nil {
		return "", fmt.Errorf("cluster: kubeconfig of %s: %w", u.Name, err)
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return "", fmt.Errorf("cluster: kubeconfig of %s: %w", u.Name, err)
	}
	return f.Name(), nil
}
