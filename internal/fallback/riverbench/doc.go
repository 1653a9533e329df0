// Package riverbench measures the queue of package fallback beside River's, on one server in one run. It is a module of
// its own, so that River is no dependency of the gateway.
package riverbench
