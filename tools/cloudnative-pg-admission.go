// The admission webhooks of CloudNativePG's operator for Clusters, without its controllers: a main of our own for its module,
// which tools/kubernetes-programs builds. Usage: cloudnative-pg-admission --kubeconfig FILE PORT FOLDER (of tls.crt and tls.key)
package main

import (
	"flag"
	"strconv"

	apiv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	webhookv1 "github.com/cloudnative-pg/cloudnative-pg/internal/webhook/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	flag.Parse() // --kubeconfig is controller-runtime's
	port, err := strconv.Atoi(flag.Arg(0))
	must(err)
	scheme := runtime.NewScheme()
	must(apiv1.AddToScheme(scheme))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:        scheme,
		Metrics:       server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: flag.Arg(1)}),
	})
	must(err)
	must(webhookv1.SetupClusterWebhookWithManager(manager))
	must(manager.Start(ctrl.SetupSignalHandler()))
}
