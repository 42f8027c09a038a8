//! Which connected agents hold an account, across all replicas.

use std::collections::BTreeSet;

use super::RestState;
use crate::account::KubesvcAccount;

impl RestState {
    /// Returns the ids of the agents that hold each of these accounts, sorted. Agents whose replica does not answer
    /// are included if the account's status names them.
    pub(super) async fn holders(&self, accounts: &[&KubesvcAccount]) -> Vec<Vec<String>> {
        let uids: Vec<_> = accounts.iter().map(|account| account.uid().to_owned()).collect();
        let mut remote = self.peers.holders(&uids).await;
        let each = accounts.iter().zip(&uids).map(|(account, uid)| {
            let own = self.fleet.holders(uid).into_iter().map(|agent| agent.agent_id);
            let told = account.status.iter().flat_map(|status| &status.agents);
            let told = told.filter(|agent_id| remote.unknown.contains(*agent_id)).cloned();
            let answered = remote.agents.remove(uid).unwrap_or_default();
            let all: BTreeSet<_> = own.chain(told).chain(answered).collect();
            all.into_iter().collect()
        });
        each.collect()
    }
}
