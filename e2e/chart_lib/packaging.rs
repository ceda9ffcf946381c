//! `helm/cozystack` in the platform's hands: what a platform renders with the package on, off, and off in spite of on.

use serde_json::{Value, json};

use crate::helm::{chart, repository, template, template_all};

const PACKAGE: &str = "cozystack.kubernetes-worker-image";

/// Everything the platform renders with these values.
fn platform(values: &Value) -> Vec<Value> {
    let file = tempfile::NamedTempFile::with_suffix(".json").expect("a file");
    std::fs::write(file.path(), values.to_string()).expect("write the values");
    let arguments = ["--values", file.path().to_str().expect("a path in UTF-8")];
    let rendered = template("cozystack", "cozy-system", &chart("platform"), &arguments).unwrap_or_else(|error| panic!("{error}"));
    let documents: Vec<Value> = serde_saphyr::from_multiple(&rendered).expect("YAML");
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

fn packages(values: &Value) -> Vec<Value> {
    platform(values).into_iter().filter(|object| object["kind"] == "Package").collect()
}

fn named<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    objects.iter().find(|object| object["metadata"]["name"] == name).unwrap_or_else(|| panic!("no {name} in {objects:?}"))
}

#[test]
fn off_by_default_and_values_alone_do_not_turn_it_on() {
    assert_eq!(packages(&json!({})), [] as [Value; 0]);
    let values = json!({"kubernetesWorkerImage": {"storageClass": "local"}});
    assert_eq!(packages(&values), [] as [Value; 0]);
}

#[test]
fn on_it_is_a_package_that_helm_keeps() {
    let packages = packages(&json!({"bundles": {"enabledPackages": [PACKAGE]}}));
    assert_eq!(packages.len(), 1);
    assert_eq!(packages[0]["metadata"], json!({"name": PACKAGE, "annotations": {"helm.sh/resource-policy": "keep"}}));
    assert_eq!(packages[0]["spec"], json!({"variant": "default"}));
}

#[test]
fn disabled_wins_over_enabled() {
    let values = json!({"bundles": {"enabledPackages": [PACKAGE], "disabledPackages": [PACKAGE]}, "kubernetesWorkerImage": {"storageClass": "local"}});
    assert_eq!(packages(&values), [] as [Value; 0]);
}

#[test]
fn without_the_bundle_that_has_storage_there_is_no_package() {
    for bundles in [
        json!({"enabledPackages": [PACKAGE], "iaas": {"enabled": false}}),
        json!({"enabledPackages": [PACKAGE], "system": {"variant": "isp-hosted"}}),
    ] {
        assert_eq!(packages(&json!({"bundles": bundles})), [] as [Value; 0]);
    }
}

#[test]
fn the_platforms_values_reach_the_chart_and_no_other() {
    let list = json!({"storageClass": "local", "images": [{"schematicID": "abc", "version": "v1.13.6"}, {"name": "u", "url": "https://example.org/u.img"}]});
    let enabled = [PACKAGE, "cozystack.vm-default-images"];
    let packages = packages(&json!({"bundles": {"enabledPackages": enabled}, "kubernetesWorkerImage": list}));
    assert_eq!(named(&packages, PACKAGE)["spec"]["components"], json!({"kubernetes-worker-image": {"values": list}}));
    assert_eq!(named(&packages, "cozystack.vm-default-images")["spec"], json!({"variant": "default"}));
}

#[test]
fn a_nulled_key_is_no_key() {
    let packages = packages(&json!({"bundles": {"enabledPackages": [PACKAGE]}, "kubernetesWorkerImage": null}));
    assert_eq!(packages[0]["spec"], json!({"variant": "default"}));
}

/// The PackageSource is inert and always there, like every other; what it names must exist here or in the platform.
#[test]
fn the_source_names_what_exists() {
    let sources: Vec<_> = platform(&json!({})).into_iter().filter(|object| object["kind"] == "PackageSource").collect();
    let source = named(&sources, PACKAGE);
    let variant = &source["spec"]["variants"][0];
    assert_eq!(variant["name"], "default", "the variant that the Package selects");
    let component = &variant["components"][0];
    assert_eq!(component["name"], "kubernetes-worker-image", "the component that the values are forwarded to");
    assert_eq!(component["path"], "system/kubernetes-worker-image");
    assert_eq!(component["install"], json!({"namespace": "cozy-kubernetes-worker-image", "releaseName": "kubernetes-worker-image"}));
    for library in component["libraries"].as_array().expect("libraries") {
        let listed = variant["libraries"].as_array().expect("libraries").iter().find(|listed| listed["name"] == *library);
        let path = listed.expect("a library of the variant")["path"].as_str().expect("a path");
        let folder = repository().join("helm").join(path.trim_start_matches("library/"));
        assert!(folder.join("Chart.yaml").is_file(), "{path}");
        // The chart takes it in by the name under which the platform puts it there.
        let linked = repository().join("helm/kubernetes-worker-image/charts").join(library.as_str().expect("a name"));
        assert_eq!(linked.canonicalize().expect("the chart's library"), folder.canonicalize().expect("the library"));
    }
    let needs: Vec<&str> = variant["dependsOn"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    for need in ["networking", "cozystack-basics", "cert-manager", "kubevirt-cdi", "prometheus-operator-crds"] {
        assert!(needs.contains(&format!("cozystack.{need}").as_str()), "{need} in {needs:?}");
    }
}

/// The sixteen VM images: one list with today's addresses, one to be filled, for the same systems.
#[test]
fn the_example_lists_hold_the_platforms_sixteen() {
    let read = |name: &str| {
        let text = std::fs::read_to_string(repository().join("helm/cozystack/examples").join(name)).expect(name);
        let list: Value = serde_saphyr::from_str(&text).expect(name);
        list["images"].as_array().expect("images").clone()
    };
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_else(|| panic!("{field} in {entry}")).to_owned();
    let (today, pinned) = (read("vm-default-images.yaml"), read("vm-images-pinned.yaml"));
    assert_eq!((today.len(), pinned.len()), (16, 16));
    for (today, pinned) in today.iter().zip(&pinned) {
        let name: golden_catalog::model::ImageName = text(today, "name").parse().expect("an image name");
        assert_eq!(text(today, "storage"), "20Gi");
        assert!(text(pinned, "name").starts_with(name.as_str()), "{name}");
        assert_eq!(today["os"], pinned["os"]);
        for url in [text(today, "url"), text(pinned, "url")] {
            let url: golden_catalog::model::HttpUrl = url.parse().expect("a URL");
            assert!(url.is_https(), "{url}");
        }
        // Nobody's digest is made up: the form cannot be applied before it is filled.
        assert_eq!(text(pinned, "digest"), "sha256:FILL_SHA256");
        text(pinned, "digest").parse::<golden_catalog::model::Digest>().expect_err("a placeholder is no digest");
        let filled = text(pinned, "name").replace("FILL_BUILD", "20261101");
        filled.parse::<golden_catalog::model::ImageName>().expect("a filled name");
    }
}

/// What a release of the catalog's chart renders with these values, or what helm said.
fn catalog(release: &str, namespace: &str, values: &Value) -> Result<Vec<Value>, String> {
    let file = tempfile::NamedTempFile::with_suffix(".json").expect("a file");
    // YAML takes control characters as escapes only.
    let text = values.to_string().replace('\u{7f}', "\\u007f").replace('\u{80}', "\\u0080");
    std::fs::write(file.path(), text).expect("write the values");
    let kinds = ["monitoring.coreos.com/v1/PrometheusRule", "monitoring.coreos.com/v1/PodMonitor"];
    let mut arguments = vec!["--values", file.path().to_str().expect("UTF-8")];
    arguments.extend(kinds.iter().flat_map(|kind| ["--api-versions", kind]));
    let rendered = template_all(release, namespace, &repository().join("helm/kubernetes-worker-image"), &arguments)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&rendered).expect("YAML");
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The platform's operator gives every HelmRelease the values of its Secret `cozystack-values`.
#[test]
fn the_platforms_own_values_are_taken_beside_the_list() {
    let values = json!({
        "_cluster": {"root-host": "example.org", "bundle-name": "isp-full"}, "_namespace": {"etcd": "tenant-root"}, "global": {},
        // The former chart's keys: `docs/migration.md` keeps them as they are.
        "imageFactoryURL": "https://factory.talos.dev", "storageClass": "replicated", "storage": "6Gi",
        "images": [{"schematicID": "abc", "version": "v1.13.6"}],
    });
    let objects = catalog("kubernetes-worker-image", "cozy-kubernetes-worker-image", &values).unwrap_or_else(|error| panic!("{error}"));
    let list = named(&objects, "golden-catalog-images")["data"]["images.yaml"].as_str().expect("a list").to_owned();
    let list = golden_catalog::catalog::read_list(&list).expect("a list");
    let target = &list.entries[0].as_ref().expect("good").image.targets[0];
    assert_eq!((target.requested_class(), target.size.expect("a size").to_string()), ("replicated", "6Gi".to_owned()));
    let empty = json!({"_cluster": null, "_namespace": null, "global": null});
    catalog("kubernetes-worker-image", "cozy-kubernetes-worker-image", &empty).unwrap_or_else(|error| panic!("{error}"));
}

/// YAML has words that are no text; whatever a release, a namespace or a class is called, it is text here.
#[test]
fn names_that_yaml_reads_as_something_else_stay_text() {
    fn check(of: &Value, path: &str) {
        match of {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                let is_name = ["namespace", "storageClassName", "app.kubernetes.io/instance", "kubernetes.io/metadata.name"];
                // In a schema, or where it is a map of its own, the key means something else.
                assert!(!is_name.contains(&key.as_str()) || value.is_string() || value.is_object(), "{path}.{key}: {value}");
                check(value, &format!("{path}.{key}"));
            }),
            Value::Array(list) => list.iter().for_each(|value| {
                assert!(!(path.ends_with(".values") || path.ends_with(".resourceNames")) || value.is_string(), "{path}: {value}");
                check(value, path);
            }),
            _ => {}
        }
    }
    for (release, namespace, catalog_namespace) in [("y", "2026", "123"), ("123", "1", "null"), ("null", "0x1f", "on"), ("1", "no", "true")]
    {
        let values =
            json!({"catalogNamespace": catalog_namespace, "spool": {"storageClass": "off"}, "admission": {"issuerRef": {"name": "ca"}}});
        let objects = catalog(release, namespace, &values).unwrap_or_else(|error| panic!("{release}: {error}"));
        objects.iter().for_each(|object| check(object, object["kind"].as_str().expect("a kind")));
        let role = objects.iter().find(|object| object["kind"] == "Role" && object["metadata"]["namespace"] == catalog_namespace);
        assert!(role.is_some(), "the catalog's Role is in {catalog_namespace}");
    }
}

#[test]
fn the_webhooks_address_may_be_an_ipv6_one() {
    let values = json!({"admission": {"advertisedURL": "https://[2001:db8::1]:8443", "issuerRef": {"name": "ca"}}});
    let objects = catalog("catalog", "cozy-kubernetes-worker-image", &values).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(named(&objects, "golden-catalog-webhook")["spec"]["ipAddresses"], json!(["2001:db8::1"]));
    let admission =
        objects.iter().find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == "golden-catalog-admission");
    let arguments = admission.expect("a Deployment").pointer("/spec/template/spec/containers/0/args").expect("arguments");
    assert!(arguments.as_array().expect("a list").contains(&json!("--webhook-host=2001:db8::1")), "{arguments}");
}

/// Both Deployments read one settings file: what the daemon would not start with fails the render, in words that repeat no password.
#[test]
fn settings_that_the_daemon_would_not_start_with_are_refused() {
    let settings = |settings: Value| json!({ "settings": settings });
    let egress = |egress: Value| json!({ "settings": { "egress": egress } });
    let fake = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
    let cases = [
        (settings(json!({"retireWait": "0s"})), "'/settings/retireWait'"),
        (settings(json!({"backoffMin": "0s"})), "'/settings/backoffMin'"),
        (settings(json!({"watchLimit": "9999999999999999999h"})), "'/settings/watchLimit'"),
        (settings(json!({"watchLimit": "1m1h"})), "'/settings/watchLimit'"),
        (settings(json!({"workers": 1e30})), "'/settings/workers'"),
        (egress(json!({"caps": {"artifactBytes": 1e30}})), "'/settings/egress/caps/artifactBytes'"),
        (json!({"controller": {"resources": {"requests": true}}}), "'/controller/resources/requests'"),
        (json!({"admission": {"resources": {"limits": {"memory": "much"}}}}), "'/admission/resources/limits/memory'"),
        (json!({"admission": {"advertisedURL": "https://a\nb.example"}}), "admission.advertisedURL must be an `https://` URL"),
        (settings(json!({"retireWait": "5s"})), "settings.retireWait must be longer"),
        (settings(json!({"backoffMin": "11m"})), "settings.backoffMin must not be more"),
        (settings(json!({"lease": {"duration": "5s"}})), "settings.lease must have"),
        (settings(json!({"lease": {"duration": "2m", "renewDeadline": "90s"}})), "settings.lease must have"),
        (settings(json!({"lease": {"duration": "15500ms"}})), "settings.lease must have"),
        (settings(json!({"lease": {"retryPeriod": "9s"}})), "settings.lease must have"),
        (settings(json!({"lease": {"renewDeadline": "2400ms"}})), "settings.lease must have"),
        (egress(json!({"deadlines": {"idle": "8760h"}})), "settings.egress.deadlines.idle must be at most"),
        (settings(json!({"backoffMin": "11m", "backoffMax": null})), "settings.backoffMin must not be more"),
        (egress(json!({"caBundle": "garbage"})), "settings.egress.caBundle must be"),
        (egress(json!({"caBundle": fake("AAAA")})), "settings.egress.caBundle must be"),
        (egress(json!({"caBundle": fake("MIIB").replace("END", "ENT") + &fake("MIIB")})), "settings.egress.caBundle must be"),
        (egress(json!({"mirrors": {"https://cloud.example.org": ["https://m.example"]}})), "must be `host` or `host:port`"),
        (egress(json!({"mirrors": {"bücher.example": ["https://m.example"]}})), "a name in other letters is written in its `xn--` form"),
        (egress(json!({"mirrors": {"a": ["https://u:hunter2@m.example"]}})), "must not contain credentials: a mirror gets none"),
        (egress(json!({"mirrors": {"a": ["https://u:hunter2#@m.example"]}})), "settings.egress.mirrors: \"…\" is not"),
        (egress(json!({"mirrors": {"a": ["https://m.example/?sig=hunter2"]}})), "must not have a query"),
        (egress(json!({"proxy": {"noProxy": "???"}})), "settings.egress.proxy.noProxy"),
        (egress(json!({"proxy": {"noProxy": "10.0.0.0/33"}})), "noProxy: \"10.0.0.0/33\" must be"),
        (egress(json!({"proxy": {"noProxy": "a:b:c"}})), "noProxy: \"a:b:c\" must be"),
        (egress(json!({"proxy": {"noProxy": "a:99999"}})), "noProxy: \"a:99999\" must be"),
        (egress(json!({"proxy": {"noProxy": "fd00::/200"}})), "noProxy: \"fd00::/200\" must be"),
        (egress(json!({"proxy": {"noProxy": "300.1.1.1/8"}})), "noProxy: \"300.1.1.1/8\" must be"),
        (egress(json!({"proxy": {"noProxy": "10/8"}})), "noProxy: \"10/8\" must be"),
        (
            json!({"controller": {"proxySecret": "proxy"}, "settings": {"egress": {"proxy": {"noProxy": ".svc"}}}}),
            "controller.proxySecret counts only where",
        ),
        (egress(json!({"proxy": {"http": "socks5://proxy"}})), "SOCKS is not supported"),
        (egress(json!({"proxy": {"https": "http://user:hunter2@proxy:3128"}})), "name it in controller.proxySecret"),
        (json!({"spool": {"size": "100Gi", "volumeSize": "10Gi"}}), "spool.size must not be more"),
        (json!({"spool": {"advertisedURL": "http://192.0.2.1"}}), "spool.advertisedURL must be"),
        (json!({"admission": {"advertisedURL": "https://u:hunter2@host"}}), "admission.advertisedURL must be"),
        (json!({"monitoring": {"runbookURL": "https://u:hunter2@host/books"}}), "monitoring.runbookURL must be"),
        (json!({"factoryURL": "https://u:hunter2@host"}), "factoryURL: \"https://…@host\" is not a valid URL"),
        (json!({"factoryURL": "https://u:hunter2#x@host"}), "factoryURL: \"…\" is not a valid URL"),
        (json!({"images": [{"name": "a", "url": "http://[64:ff9b::192.0.2.1]/"}]}), "write `c000:201` for its `192.0.2.1`"),
        (
            json!({"images": [{"name": "a", "url": "https://u:hunter2@host/a"}]}),
            "images[0] (a): `url`: \"https://…@host/a\" is not a valid URL",
        ),
        (json!({"storage": "0"}), "storage: \"0\" is not a valid disk size"),
        (json!({"storageClass": "a..b"}), "'/storageClass'"),
        (json!({"monitoring": null}), "missing property 'monitoring'"),
        (json!({"networkPolicies": null}), "missing property 'networkPolicies'"),
        (json!({"networkPolicies": {"metricsFrom": [{}]}}), "'/networkPolicies/metricsFrom/0'"),
        (json!({"networkPolicies": {"webhookFrom": ["192.0.2.0/24"]}}), "'/networkPolicies/webhookFrom/0'"),
        (json!({"settings": {"admissionLinger": "15001ms"}}), "settings.admissionLinger must be at most 15s"),
    ];
    for (values, expected) in cases {
        let error = catalog("catalog", "cozy-kubernetes-worker-image", &values).err().unwrap_or_else(|| panic!("{values} was rendered"));
        assert!(error.contains(expected) && !error.contains("hunter2"), "{values}: {expected} in {error}");
    }
}

/// What is taken is what the daemon reads.
#[test]
fn settings_that_are_taken_are_read_by_the_daemon() {
    let certificate = rcgen::generate_simple_self_signed(vec!["ca.example".to_owned()]).expect("a certificate").cert.pem();
    let settings = json!({
        "watchLimit": "1h30m", "admissionLinger": "15s", "backoffMin": "1500ms", "retireWait": "61s", "lease": {"duration": "1m", "renewDeadline": "59s", "retryPeriod": "49s"},
        "egress": {
            "caBundle": format!("subject=/CN=a--b\n{certificate}-- next --\n{certificate}"),
            "mirrors": {"cloud.example.org": ["https://m.example/cloud"], "r.example:5000": ["http://10.0.0.1:80", "https://[2001:db8::1]", "https://[2001:db8::1:0:0:5]"]},
            "proxy": {"http": "http://proxy:3128/", "https": "proxy:3128", "noProxy": ".svc, 10.0.0.0/8,*.example,fd00::/8,[::1]:80,127.0.0.1:90,localhost\n10.0.0.0/8:8443\tfd00::/8:8443\n::ffff:10.0.0.1\n"},
            "deadlines": {"firstByte": "168h"},
        },
    });
    let objects =
        catalog("catalog", "cozy-kubernetes-worker-image", &json!({ "settings": settings })).unwrap_or_else(|error| panic!("{error}"));
    let text = named(&objects, "golden-catalog-settings")["data"]["settings.yaml"].as_str().expect("a file").to_owned();
    let read: golden_catalog::daemon::Settings = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.lease.duration.as_secs(), 60);
    read.check().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.egress.ca_bundle.expect("a bundle").matches("BEGIN").count(), 2);
    // `null` takes a default of the chart away, and leaves the daemon's own.
    for left_out in [json!({"lease": null, "retireWait": null, "backoffMax": null}), json!({"lease": {"duration": null}})] {
        catalog("catalog", "cozy-kubernetes-worker-image", &json!({ "settings": left_out })).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A text is what it was, whatever is in it; a list is never lost for one.
#[test]
fn a_list_reaches_the_daemon_as_it_was_written() {
    let texts = ["plain: text # here", "<a>\u{2028}", "a\u{2029}b\n", "\u{7f}ä", "a\u{80}\t\"b\""];
    let images: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| json!({"name": format!("n{index}"), "url": format!("https://e.example/{index}"), "description": text}))
        .collect();
    for (index, text) in texts.iter().enumerate() {
        let objects = catalog("catalog", "cozy-kubernetes-worker-image", &json!({"images": [images[index]]}))
            .unwrap_or_else(|error| panic!("{error}"));
        let list = named(&objects, "golden-catalog-images")["data"]["images.yaml"].as_str().expect("a list").to_owned();
        let list = golden_catalog::catalog::read_list(&list).expect("a list");
        assert_eq!(list.entries[0].as_ref().expect("good").spec.description.as_deref(), Some(*text));
    }
}

/// What stands twice is taken out once, and is still there.
#[test]
fn no_right_is_given_twice_by_one_role() {
    let mut roles = 0;
    for role in catalog("catalog", "cozy-kubernetes-worker-image", &json!({})).unwrap_or_else(|error| panic!("{error}")) {
        let Some(rules) = role["rules"].as_array() else { continue };
        roles += 1;
        let mut seen = std::collections::BTreeSet::new();
        let all = |rule: &Value, key: &str| rule[key].as_array().cloned().unwrap_or_else(|| vec![json!("*")]);
        for rule in rules {
            for (group, resource) in all(rule, "apiGroups")
                .iter()
                .flat_map(|group| all(rule, "resources").into_iter().map(move |resource| (group.clone(), resource)))
            {
                for (verb, name) in
                    all(rule, "verbs").iter().flat_map(|verb| all(rule, "resourceNames").into_iter().map(move |name| (verb.clone(), name)))
                {
                    let right = format!("{group} {resource} {verb} {name}");
                    assert!(seen.insert(right.clone()), "{}: {right}", role["metadata"]["name"]);
                }
            }
        }
    }
    assert!(roles >= 5, "{roles}");
}

/// Two images may ask for goldens of one name, and a name may be too long: `golden-catalog plan` says it too.
#[test]
fn goldens_of_one_name_are_told_before_they_are_made() {
    let two = |first: &str, further: &str| json!({"targets": [{"storageClassName": first}, {"storageClassName": further}]});
    let long = "b".repeat(253);
    let cases = [
        (
            json!([{"name": "a", "url": "https://e.example/1", "storage": two("x", "b")}, {"name": "a-b", "url": "https://e.example/2"}]),
            "images[1] (a-b): its golden vm-default-images-a-b has the name of one of a: give",
        ),
        (
            json!([{"schematicID": "abc", "version": "v1.13.6", "storage": two("x", "metal-amd64")}, {"name": "metal", "schematicID": "abc", "version": "v1.13.6", "platform": "metal"}]),
            "images[1] (metal): its golden talos-worker-abc-v1.13.6-metal-amd64 has the name of one of talos-v1.13.6-",
        ),
        (
            json!([{"name": "a", "url": "https://e.example/1", "storage": two("x", &long)}]),
            "a name of 273 characters, and 253 are the most",
        ),
    ];
    for (images, expected) in cases {
        let error =
            catalog("catalog", "cozy-kubernetes-worker-image", &json!({ "images": images })).err().unwrap_or_else(|| panic!("{images}"));
        assert!(error.contains(expected), "{expected} in {error}");
    }
}

/// Who may reach the webhook is as narrow as the values can make it; nothing else that is reached changes with it.
#[test]
fn the_api_server_can_be_all_that_reaches_the_webhook() {
    let peers = json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}, {"ipBlock": {"cidr": "2001:db8::/64"}}]);
    let ingress = |values: Value| {
        let objects = catalog("catalog", "cozy-kubernetes-worker-image", &values).unwrap_or_else(|error| panic!("{error}"));
        let of = |role: &str| {
            let is_its =
                |object: &&Value| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == format!("golden-catalog-{role}");
            objects.iter().find(is_its).expect("a policy")["spec"]["ingress"].clone()
        };
        (of("admission"), of("controller"))
    };
    let (open, controller) = ingress(json!({}));
    let (mut narrow, same) = ingress(json!({"networkPolicies": {"webhookFrom": peers}}));
    assert_eq!((&narrow[0]["ports"][0]["port"], &narrow[0]["from"]), (&json!("webhook"), &peers));
    assert_eq!(open[0].get("from"), None);
    narrow[0].as_object_mut().expect("a rule").remove("from");
    assert_eq!((narrow, same), (open, controller));
}

/// Whom Pods may reach is as narrow as the values can make it.
#[test]
fn names_and_the_api_server_can_be_all_that_admission_reaches() {
    let (dns, server) = (json!([{"namespaceSelector": {}}]), json!([{"ipBlock": {"cidr": "10.0.0.1/32"}}]));
    let values = json!({"networkPolicies": {"dns": dns, "apiServer": server}});
    let objects = catalog("catalog", "cozy-kubernetes-worker-image", &values).unwrap_or_else(|error| panic!("{error}"));
    let policies: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "NetworkPolicy").collect();
    assert_eq!(policies.len(), 2);
    for policy in policies {
        let egress = policy["spec"]["egress"].as_array().expect("rules");
        assert!(egress.iter().all(|rule| rule["to"].as_array().is_some_and(|peers| !peers.is_empty())), "{policy}");
        let cidrs =
            egress.iter().flat_map(|rule| rule["to"].as_array().into_iter().flatten()).filter(|peer| peer["ipBlock"]["cidr"] == "::/0");
        let shut: Vec<&Value> = cidrs.flat_map(|peer| peer["ipBlock"]["except"].as_array().into_iter().flatten()).collect();
        let is_controller = policy["metadata"]["name"] == "golden-catalog-controller";
        assert_eq!(shut.contains(&&json!("fd00:ec2::/32")), is_controller, "{policy}");
        assert!(is_controller || (egress[0]["to"] == dns && egress[1]["to"] == server), "{policy}");
    }
}
