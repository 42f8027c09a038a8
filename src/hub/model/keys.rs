//! When two worlds are the same: what they say, but for numbers that only count.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::world::{HubSession, Process, World};
use crate::account::lifecycle::Word;
use crate::account::{KubesvcAccount, KubesvcAgent};

/// What an object says, in one number.
pub(super) fn digest_of(account: &KubesvcAccount) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = &account.metadata;
    (&meta.uid, meta.generation, meta.deletion_timestamp.is_some(), &meta.finalizers).hash(&mut hasher);
    (format!("{:?}", account.spec), format!("{:?}", account.status)).hash(&mut hasher);
    hasher.finish()
}

fn agent(agent: &KubesvcAgent, hasher: &mut impl Hasher) {
    format!("{:?}", agent.status).hash(hasher);
}

fn session(session: &HubSession, hasher: &mut impl Hasher) {
    (&session.id, session.replica, session.process, session.ended).hash(hasher);
    session.to_agent.hash(hasher);
    session.to_hub.iter().for_each(|one| format!("{one:?}").hash(hasher));
    session.reported.iter().for_each(|one| format!("{one:?}").hash(hasher));
    let mut entries: Vec<_> = session.ledger.entries().collect();
    entries.sort_by_key(|(uid, _)| uid.as_str());
    for (uid, entry) in entries {
        let word = entry.word.as_ref().map(|(epoch, word)| {
            (
                *epoch,
                match word {
                    Word::Held(_) => 0,
                    Word::Failed(_) => 1,
                    Word::Dropped => 2,
                    Word::Lost(_) => 3,
                },
            )
        });
        let command = format!("{:?}", entry.command);
        (
            uid,
            entry.believed,
            command,
            word,
            entry.again.map(|again| again.epoch),
            entry.drop_failed,
            entry.confirmed,
        )
            .hash(hasher);
        entry.owed.map(|(epoch, _)| epoch).hash(hasher);
        session.ledger.name_is_busy(&entry.name).hash(hasher);
    }
}

fn process(process: &Process, hasher: &mut impl Hasher) {
    (process.boot, process.seq, &process.stream).hash(hasher);
    let mut held: Vec<_> =
        process.table.held().filter_map(|held| held.account).map(|one| (one.uid, one.epoch)).collect();
    held.sort();
    held.hash(hasher);
    for (uid, (_, account)) in &process.starting {
        (uid, account.epoch).hash(hasher);
    }
}

impl World {
    /// The same for worlds that go on alike.
    pub(super) fn key(&self) -> u128 {
        let (mut one, mut other) = (DefaultHasher::new(), DefaultHasher::new());
        1_u8.hash(&mut other);
        self.hash_into(&mut one);
        self.hash_into(&mut other);
        u128::from(one.finish()) << 64 | u128::from(other.finish())
    }

    fn hash_into(&self, hasher: &mut impl Hasher) {
        self.faults.hash(hasher);
        self.objects.iter().for_each(|one| one.as_ref().map(|one| one.digest).hash(hasher));
        (self.made, &self.row, self.broken.is_some()).hash(hasher);
        self.agents.values().for_each(|one| agent(one, hasher));
        for replica in &self.replicas {
            let behind = replica.leads.map(|term| self.term - term);
            (replica.lag, behind, &replica.gone, &replica.has_read).hash(hasher);
            replica.agents.values().for_each(|one| agent(one, hasher));
        }
        self.sessions.iter().for_each(|one| session(one, hasher));
        self.processes.iter().for_each(|one| process(one, hasher));
    }
}
