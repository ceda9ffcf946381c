//! Which cluster this is about.

use kube::{Config, config::KubeconfigError};

use crate::api::yaml_fault;

/// The cluster that `KUBECONFIG`, `~/.kube/config` or the Pod's own account names.
///
/// # Errors
/// Why there is none, in one line. Nothing of a kubeconfig's content is repeated: it holds tokens.
pub async fn cluster() -> Result<Config, String> {
    Config::infer().await.map_err(|error| {
        let kubeconfig = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
        let why = kubeconfig.map_or_else(|| error.to_string(), fault);
        format!("no cluster: {why}; set KUBECONFIG or run this inside a cluster")
    })
}

fn fault(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::FindPath => "there is no kubeconfig".to_owned(),
        KubeconfigError::ReadConfig(error, path) => format!("cannot read the kubeconfig {}: {error}", path.display()),
        KubeconfigError::Parse(error) => format!("the kubeconfig is wrong: {}", yaml_fault(error)),
        KubeconfigError::CurrentContextNotSet => "the kubeconfig has no `current-context`".to_owned(),
        KubeconfigError::LoadContext(name) => format!("the kubeconfig has no context `{name}`, which is its `current-context`"),
        other => format!("the kubeconfig cannot be used: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
    use rstest::rstest;

    use super::fault;

    #[rstest]
    #[case("a: [\nb: hunter2\n", "the kubeconfig is wrong: ")]
    #[case("users: hunter2\n", "the kubeconfig is wrong: ")]
    #[case("apiVersion: v1\nkind: Config\n", "the kubeconfig has no `current-context`")]
    #[case("current-context: x\n", "the kubeconfig has no context `x`")]
    #[tokio::test]
    async fn what_is_wrong_with_a_kubeconfig_is_told_without_what_it_holds(#[case] text: &str, #[case] expected: &str) {
        let error = match Kubeconfig::from_yaml(text) {
            Err(error) => error,
            Ok(config) => kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.expect_err(expected),
        };
        let told = fault(&error);
        assert!(told.starts_with(expected) && !told.contains("hunter2") && !told.contains('\n'), "{told}");
        assert!(fault(&KubeconfigError::FindPath).contains("no kubeconfig"));
    }
}
